//! Reads the whole audit trail from PostgreSQL, for verification and export.

use std::io;

use super::{PgConnector, schema};
use crate::{
    ReadAuditError, StoreError, VerifiedTrail, VerifyError,
    coverage::COVERAGE_FACT,
    sql::Sql as _,
    statements::{
        facts,
        trail::{covered_rows, for_each_entry},
    },
    verify::{self, TrailCoverage},
};
use countersign_domain::changes::audit::{AuditEntry, AuditHead};

/// Verifies the trail and all rows that it covers, in one snapshot and in bounded memory.
///
/// # Errors
/// [`VerifyError::Broken`] at the first contradiction.
pub(super) async fn verify(connector: &PgConnector, expected: Option<AuditHead>) -> Result<VerifiedTrail, VerifyError> {
    let client = connector.snapshot().await?.ok_or_else(schema::no_schema_error)?;
    let version = schema::read_version(&client).await?;
    let has_key_creators = version >= Some(schema::FIRST_WITH_KEY_CREATORS);
    let coverage = TrailCoverage {
        rows: covered_rows(&client, has_key_creators).await?,
        covers_old_rows: facts::get(&client, COVERAGE_FACT).await?.is_some(),
        has_lifecycle_columns: version >= Some(schema::FIRST_WITH_PLANS),
    };
    let verified = verify::verify(&client, expected, &coverage).await?;
    // The next entry will be chained to the stored head.
    if client.heads().await?.audit != verified.head {
        return Err(StoreError::BadRecord(
            "the row in `heads` differs from the last audit entry; restore the database from a backup".into(),
        )
        .into());
    }
    Ok(verified)
}

/// Passes every entry to `each` ([`for_each_entry`]).
///
/// # Errors
/// Those of the database, and those of `each`.
pub(super) fn read_audit(
    connector: &PgConnector,
    each: &mut dyn FnMut(&AuditEntry) -> io::Result<()>,
) -> Result<(), ReadAuditError> {
    connector.block_on(async {
        let client = connector.connect().await?;
        schema::read_version(&client).await?.ok_or_else(schema::no_schema_error)?;
        for_each_entry(&client, each).await
    })
}
