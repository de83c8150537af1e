//! `backup FILE`: copies the store, even while its gateway runs.

use jiff::Timestamp;

use super::{
    args::storage::BackupArgs,
    exit::{Exit, Failure},
    output::{Output, print_note},
    store_location,
};
use countersign_domain::text::{irregular_plural, plural};
use countersign_store::sqlite::backup::BackupError;

pub fn run(args: &BackupArgs, out: &mut Output) -> Result<Exit, Failure> {
    let outcome = store_location(&args.data)?.backup(&args.file, args.force, Timestamp::now());
    let backup = outcome.map_err(|error| match error {
        BackupError::Exists(_) | BackupError::NotAFile(_) | BackupError::Inside(_) | BackupError::Server => {
            Failure::new(Exit::Usage, error)
        }
        BackupError::Trail(_) | BackupError::Bad(_) => Failure::new(Exit::Failed, error),
        BackupError::Store(error) => error.into(),
        BackupError::Write { .. } => Failure::new(Exit::Unavailable, error),
    })?;
    out.write_path(&args.file)?;
    if let Some(tracker) = &backup.tracker {
        out.write_path(tracker)?;
    }
    out.finish()?;
    print_note(&format!(
        "{}, {}, {}: its pages and its audit trail were checked. Head of the trail: {}. To \
         restore, copy it as countersign.db{} into an empty data directory and start a gateway on that.",
        plural(backup.bytes, "byte"),
        plural(backup.trail.changes, "change"),
        irregular_plural(backup.trail.entries, "audit entry", "audit entries"),
        backup.trail.head.export(),
        if backup.tracker.is_some() { " (and the other as tracker.db)" } else { "" },
    ));
    Ok(Exit::Ok)
}
