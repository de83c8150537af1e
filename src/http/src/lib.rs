//! TODO ('http',)

pub mod dashboard;
pub mod guard;
pub mod rest;
pub mod services;
pub mod transports;
