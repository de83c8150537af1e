//! TODO ('runtime',)

pub mod deadline;
pub mod ending;
pub mod fast_map;
pub mod lanes;
