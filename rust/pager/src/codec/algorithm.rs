//! Which encodings people can choose, and their names and levels.

use zstd::zstd_safe::{max_c_level, min_c_level};

const LZ4_LEVEL_MAX: i32 = 12;

/// An encoding with its level, as people choose it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// No compression.
    Raw,
    /// LZ4: the fastest way back.
    Lz4 {
        /// 0 is the fast mode, 1..=12 the levels of the slow mode.
        level: i32,
    },
    /// zstd: fewer bytes.
    Zstd {
        /// Any level of the library; negative ones are faster.
        level: i32,
    },
}

impl Algorithm {
    /// The algorithm of that name (`raw`, `lz4`, `zstd`), if it has that level.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn parse(name: &str, level: i32) -> Result<Self, String> {
        let (algorithm, levels) = match name {
            "raw" => (Self::Raw, 0..=0),
            "lz4" => (Self::Lz4 { level }, 0..=LZ4_LEVEL_MAX),
            "zstd" => (Self::Zstd { level }, min_c_level()..=max_c_level()),
            _ => return Err(format!("unknown algorithm {name:?}: use raw, lz4 or zstd")),
        };
        if !levels.contains(&level) {
            let (low, high) = levels.into_inner();
            return Err(format!("{name} has no level {level}: use {low} to {high}"));
        }
        Ok(algorithm)
    }

    /// What [`Self::parse`] takes as name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Lz4 { .. } => "lz4",
            Self::Zstd { .. } => "zstd",
        }
    }

    /// The level; 0 for raw.
    pub const fn level(self) -> i32 {
        match self {
            Self::Raw => 0,
            Self::Lz4 { level } | Self::Zstd { level } => level,
        }
    }
}
