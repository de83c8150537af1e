//! The program: an allocator and the command line.

use std::process::ExitCode;

// Many small, short-lived allocations on few threads: measurably cheaper than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    countersign_cli::main()
}
