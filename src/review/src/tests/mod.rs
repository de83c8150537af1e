//! Tests of pending changes through their public interface, with a real store and a fake provider that counts calls.

mod bounds;
mod crashes;
mod decisions;
mod edits;
mod execution;
mod failing_store;
mod feed;
mod inquiries;
mod lifecycle;
mod restored_backup;
mod retention;
mod review_terms;
mod soak;
mod undo;
mod votes;
