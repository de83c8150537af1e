//! TODO ('exchange',)

pub mod ask;
pub mod cancel;
pub mod context;
pub mod eviction;
pub mod facts;
pub mod inflow;
pub mod memory;
pub mod outbox;
pub mod reply;
pub mod services;
pub mod shared;
pub mod slots;
pub mod streams;
