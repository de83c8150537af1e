//! Pending changes from outside: a real store, the real actor, a provider that counts.

mod bounds;
mod corrections;
mod crashes;
mod decisions;
mod execution;
mod failing_store;
mod feeding;
mod inquiries;
mod life;
mod people;
mod restoring;
mod retention;
mod soak;
mod undoing;
mod votes;
