//! The program: an allocator and the command line.

use std::process::ExitCode;

// The gateway makes many small, short-lived allocations, for which mimalloc is cheaper than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    countersign_cli::main()
}
