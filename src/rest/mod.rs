//! The REST API under `/api` and the two feed doors, for people at a dashboard, in a terminal or with curl.

pub mod problem;

pub use problem::Problem;
