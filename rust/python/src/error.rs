//! The one place where a Rust error becomes a Python exception.

use agentzip_pager::error::Error;
use pyo3::prelude::*;

/// The exception of the same name from `agentzip.errors`.
pub fn raise(error: Error) -> PyErr {
    Python::attach(|py| {
        let made = py
            .import("agentzip.errors")
            .and_then(|module| module.getattr(error.class_name()))
            .and_then(|class| class.call1((error.to_string(),)));
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(failure) => failure,
        }
    })
}
