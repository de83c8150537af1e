//! Tests of what users and operators do with the program: commands, configurations, the terminal, webhooks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod attach;
mod cli;
mod config;
mod crate_parts;
mod docs;
mod first_hours;
mod language;
mod operator;
mod program;
mod reload;
mod replacement;
mod servers;
mod service;
mod terminal;
mod user_service;
mod webhooks;
