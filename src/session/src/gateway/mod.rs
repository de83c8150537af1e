//! The parts of the gateway that the requests of all sessions share ([`server`]): their limits, the state that outlives a
//! request, the maps of sessions and nodes, and the description of the gateway.

pub mod address;
pub mod answered_page_requests;
pub mod callers;
pub mod cluster;
pub mod limits;
pub mod local_tasks;
pub mod long_requests;
pub mod registry;
pub mod server;
pub mod status;
