//! Pending changes from outside: a real store, the real actor, a provider that counts.

mod bounds;
mod crashes;
mod decisions;
mod execution;
mod failing_store;
mod feeding;
mod life;
mod restoring;
mod retention;
mod soak;
