//! `store copy`: copies a store into another one, while no gateway serves either.

use std::{
    cell::Cell,
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use super::{
    args::storage::StoreCommand,
    exit::{Exit, Failure},
    output::{Output, print_note},
};
use countersign_domain::text::{irregular_plural, plural};
use countersign_store::{MoveError, Progress, StoreLocation};
use countersign_tracker::copy_data;

/// The interval at which a terminal shows how far a copy is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

pub fn run(StoreCommand::Copy { from, to, ca }: &StoreCommand, out: &mut Output) -> Result<Exit, Failure> {
    let location = |text: &str| -> Result<StoreLocation, Failure> {
        let is_server = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
        Ok(if is_server { StoreLocation::server(text, ca.clone())? } else { StoreLocation::directory(text.as_ref()) })
    };
    let last_note = Cell::new(Instant::now());
    let show = |contents: &str, Progress { copied, total }: Progress| {
        if stderr().is_terminal() && last_note.get().elapsed() >= PROGRESS_INTERVAL {
            print_note(&format!("{copied} of {total} rows of the {contents} are copied."));
            last_note.set(Instant::now());
        }
    };
    let (from, to) = (location(from)?, location(to)?);
    let mut rows = 0;
    let mut copy_tracker = |may_replace: bool| {
        let progress = &mut |copied, total| show("tracker", Progress { copied, total });
        let copied_rows = copy_data(&from.module_storage()?, &to.module_storage()?, may_replace, progress)
            .map_err(|error| MoveError::MoveModules(error.to_string()))?;
        rows = copied_rows.ok_or(MoveError::NotEmpty)?;
        Ok(())
    };
    let move_result = from.move_to(&to, &mut copy_tracker, &mut |progress| show("store", progress));
    let moved = move_result.map_err(|error| match error {
        MoveError::SameStore | MoveError::NotEmpty | MoveError::Moved => Failure::new(Exit::Usage, error),
        MoveError::Source(_) | MoveError::Copy(_) | MoveError::Differs { .. } | MoveError::MoveModules(_) => {
            Failure::new(Exit::Failed, error)
        }
        MoveError::OtherStore(_) => Failure::new(Exit::Config, error),
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
