//! Countersign: an MCP gateway that puts a person between an AI agent and every write.

pub mod attach;
pub mod auth;
pub mod changes;
pub mod cli;
pub mod config;
pub mod dashboard;
pub mod gateway;
pub mod middleware;
pub mod pending;
pub mod policy;
pub mod protocol;
pub mod providers;
pub mod rest;
pub mod router;
pub mod serve;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod transports;
