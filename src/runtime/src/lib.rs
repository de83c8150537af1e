//! Threads, memory, secrets and the data directory: utilities that know no session, no change and no provider.
//!
//! [`large_messages`] has the threads for large messages, [`reclaim`] returns freed memory to the system, [`secret`] generates
//! and compares secrets, [`sealing`] encrypts texts, [`files`] replaces files, [`data_dir`] locks the data directory,
//! [`installation`] knows how the program was installed, and [`crash`] has the points where tests kill the process.

pub mod crash;
pub mod data_dir;
pub mod files;
pub mod installation;
pub mod large_messages;
pub mod reclaim;
pub mod sealing;
pub mod secret;
