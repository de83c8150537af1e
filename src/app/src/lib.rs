//! TODO ('app',)

pub mod serve;
pub mod server_status_events;
