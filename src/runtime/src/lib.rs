//! Threads, memory, secrets and the data directory: utilities that know no session, no change and no provider.
//!
//! [`background`] starts tasks and blocking work, [`large_messages`] has the threads for large messages, [`reclaim`] returns
//! freed memory to the system, [`secret`] generates and compares secrets, [`sealing`] encrypts texts, [`files`] replaces files
//! and creates private ones, [`data_dir`] locks the data directory, [`installation`] knows how the program was installed, and
//! [`crash`] has the points where tests kill the process. [`is_large`] decides which messages are large.

pub mod background;
pub mod crash;
pub mod data_dir;
pub mod files;
pub mod installation;
pub mod large_messages;
pub mod reclaim;
pub mod sealing;
pub mod secret;

/// Size in bytes above which a message, a body or a change is large. A smaller one takes about a millisecond at most,
/// so moving it to another thread would cost more than it saves.
const LARGE_MESSAGE_BYTES: usize = 64 * 1024;

/// Returns `true` if a message, a body or a change of this size is large.
pub const fn is_large(bytes: usize) -> bool {
    bytes > LARGE_MESSAGE_BYTES
}
