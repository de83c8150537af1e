//! Countersign: an MCP gateway that puts a person between an AI agent and every write.

pub mod attach;
pub mod auth;
pub mod changes;
pub mod cli;
pub mod config;
pub mod pending;
pub mod protocol;
pub mod providers;
pub mod rest;
pub mod store;
pub mod telemetry;
