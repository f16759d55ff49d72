//! How many cases the property tests run: few in each test run, many in `make fuzz`.
//!
//! A fuzz target is a property test of what reads bytes that others wrote, or of a table against a
//! naive model.  With `AGENTZIP_FUZZ_TIMES` each runs that many times as many cases and says so, so
//! that executions can be counted.

use proptest::prelude::ProptestConfig;
use std::io::Write;

const VARIABLE: &str = "AGENTZIP_FUZZ_TIMES";

/// The configuration of one target; `few` cases take well below a second.
pub fn cases(few: u32) -> ProptestConfig {
    let Some(times) = std::env::var_os(VARIABLE) else {
        return ProptestConfig::with_cases(few);
    };
    let times = times.to_str().and_then(|text| text.parse().ok()).filter(|times| *times > 0);
    let cases = few.saturating_mul(times.expect("AGENTZIP_FUZZ_TIMES is a positive number"));
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    writeln!(std::io::stderr(), "fuzz: {cases} cases of {name}").expect("standard error is open");
    ProptestConfig { cases, max_shrink_time: 60_000, ..ProptestConfig::default() }
}
