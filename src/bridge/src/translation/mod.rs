//! What one era or revision has and another lacks, changed in requests, results, errors and tasks; every other byte passes
//! as it came.

pub mod content;
pub mod error;
pub mod request;
pub mod result;
pub mod task_shape;
