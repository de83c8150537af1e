//! Defines `countersign service`.

use clap::Subcommand;

pub const HELP: &str = "\
Examples:
  countersign service install     Start the gateway now and at each login
  countersign service status      Show the unit and the state of the gateway
  countersign service uninstall   Stop it, and remove what `install` has written

Exit codes of `status`:
   0  the service runs
   1  it is installed and does not run
   3  it is not installed";

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Write the unit, enable it and start it; safe to repeat, for example after an update
    ///
    /// Writes ~/.config/systemd/user/countersign.service with the path of this program, with --config and --data if they
    /// are given, and with the PATH of this shell, so that the gateway finds the programs of its servers. A program in the
    /// cache of npx, uvx or pipx is copied to ~/.local/bin first. A gateway that runs in the background is stopped, and agents
    /// continue with that of the service. Without a user manager of systemd, prints the commands to run.
    Install,
    /// Stop and disable the service, and remove what `install` has written
    Uninstall,
    /// Show whether the service is installed, enabled and running
    Status,
}
