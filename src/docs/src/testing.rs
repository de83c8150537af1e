//! For measurements: what is not part of the module.

pub use crate::index::bench::{Measured, Percentiles, run};
