//! `store copy`: copies a store into another one, while no gateway serves either.

use std::{
    cell::RefCell,
    io::{IsTerminal as _, Write as _, stderr},
};

use super::{
    args::storage::StoreCommand,
    exit::{Exit, Failure},
    output::{Output, print_note},
};
use countersign_domain::text::{irregular_plural, plural};
use countersign_store::{MoveError, Progress, StoreLocation};
use countersign_tracker::copy_data;

pub fn run(StoreCommand::Copy { from, to, ca }: &StoreCommand, out: &mut Output) -> Result<Exit, Failure> {
    let location = |text: &str| -> Result<StoreLocation, Failure> {
        let is_server = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
        Ok(if is_server { StoreLocation::server(text, ca.clone())? } else { StoreLocation::directory(text.as_ref()) })
    };
    let bar = RefCell::new(ProgressBar { terminal: stderr().is_terminal(), last_shown: None });
    let (from, to) = (location(from)?, location(to)?);
    let mut rows = 0;
    let mut copy_tracker = |may_replace: bool| {
        let progress = &mut |copied, total| bar.borrow_mut().show("of the tracker", Progress { copied, total });
        let copied_rows = copy_data(&from.module_storage()?, &to.module_storage()?, may_replace, progress)
            .map_err(|error| MoveError::MoveModules(error.to_string()))?;
        rows = copied_rows.ok_or(MoveError::NotEmpty)?;
        Ok(())
    };
    let move_result =
        from.move_to(&to, &mut copy_tracker, &mut |progress| bar.borrow_mut().show("of the store", progress));
    bar.borrow_mut().end();
    let moved = move_result.map_err(|error| match error {
        MoveError::SameStore | MoveError::NotEmpty | MoveError::Moved => Failure::new(Exit::Usage, error.to_string()),
        MoveError::Source(_) | MoveError::Copy(_) | MoveError::Differs { .. } | MoveError::MoveModules(_) => {
            Failure::new(Exit::Failed, error.to_string())
        }
        MoveError::OtherStore(_) => Failure::new(Exit::Config, error.to_string()),
        MoveError::Lock(error) => error.into(),
        MoveError::Store(error) => error.into(),
    })?;
    out.write_line(&moved.head.export())?;
    out.finish()?;
    print_note(&format!(
        "Moved: {} and {} are in the new store, its trail is intact, and {} of the tracker. The line above is its head. The old store is closed; keep it as long as you would keep a backup.",
        plural(moved.changes, "change"),
        irregular_plural(moved.entries, "audit entry", "audit entries"),
        plural(rows, "row"),
    ));
    Ok(Exit::Ok)
}

/// A progress bar on stderr, if that is a terminal.
struct ProgressBar {
    terminal: bool,
    /// The step shown last, and its progress in thousandths.
    last_shown: Option<(&'static str, u64)>,
}

impl ProgressBar {
    fn show(&mut self, contents: &'static str, Progress { copied, total }: Progress) {
        let part = (copied.min(total) * 1000).checked_div(total).unwrap_or(1000);
        if !self.terminal || self.last_shown == Some((contents, part)) {
            return;
        }
        if self.last_shown.is_some_and(|(other, _)| other != contents) {
            self.end();
        }
        self.last_shown = Some((contents, part));
        let full = usize::try_from(part / 25).unwrap_or(40);
        let text =
            format!("\r{}{} {copied} of {total} rows {contents}", "█".repeat(full), "░".repeat(40 - full.min(40)));
        // Output errors are ignored, because nothing depends on the bar.
        let _ = stderr().write_all(text.as_bytes());
    }

    fn end(&mut self) {
        if self.last_shown.take().is_some() {
            let _ = stderr().write_all(b"\n");
        }
    }
}
