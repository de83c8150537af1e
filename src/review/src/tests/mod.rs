//! Tests of pending changes through their public interface, with a real store and a fake provider that counts calls.

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
