//! Translates requests, results, errors and tasks between eras and revisions. Only what one side lacks is changed;
//! every other byte passes unchanged.

pub mod error;
pub mod request;
pub mod result;
pub mod task_json;
