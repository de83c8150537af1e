//! The built-in knowledge base: folders of Markdown that agents search and ask, and to which they propose documents that
//! a person approves.

#![allow(dead_code, reason = "its parts are being put together")]

mod answer;
mod index;
mod library;
mod model;
mod remote;
mod text;
mod tools;
