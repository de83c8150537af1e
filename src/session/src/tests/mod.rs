//! Requests of clients of either era, answered without a transport.

mod account_connection;
mod bench;
mod inbound;
mod lifecycle;
mod lists;
mod middleware;
mod plans;
mod reviews;
mod scopes;
mod subscriptions;
mod tasks;
mod tools;
