//! `version`: prints the version of the program, the commit that it was built from, and what it supports.

use serde::Serialize;

use super::{
    exit::{Exit, Failure},
    output::Output,
};
use countersign_protocol::Revision;
use countersign_store::SchemaVersions;

/// The version with the commit and its date, as far as the build knew them (`build.rs`).
pub const VERSION: &str = env!("BUILD_VERSION");

/// The date of the commit; empty if the build did not know it.
pub const COMMIT_DATE: &str = env!("BUILD_DATE");

/// Features that another build or version may lack, in alphabetical order.
const FEATURES: &[&str] = &[
    "access-tokens",
    "docs",
    "hosted-servers",
    "oidc",
    "postgresql",
    "sql-previews",
    "sqlite",
    "systemd-credentials",
    "systemd-notify",
    "tls",
    "tracker",
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Description {
    version: &'static str,
    /// The first characters of the commit's hash; `null` if the build did not know it.
    commit: Option<&'static str>,
    date: Option<&'static str>,
    features: &'static [&'static str],
    protocol_versions: [&'static str; Revision::ALL.len()],
    /// The newest schema of a store that the program reads, and to which it migrates older ones.
    schema_versions: SchemaVersions,
}

pub fn run(json: bool, out: &mut Output) -> Result<Exit, Failure> {
    let non_empty = |text: &'static str| Some(text).filter(|text| !text.is_empty());
    let description = Description {
        version: env!("CARGO_PKG_VERSION"),
        commit: non_empty(env!("BUILD_COMMIT")),
        date: non_empty(COMMIT_DATE),
        features: FEATURES,
        protocol_versions: Revision::ALL.map(Revision::as_str),
        schema_versions: SchemaVersions::of_program(),
    };
    if json {
        let json = serde_json::to_string(&description).map_err(|error| Failure::new(Exit::Internal, error))?;
        out.write_json(&json)?;
        return Ok(Exit::Ok);
    }
    let SchemaVersions { sqlite, postgresql } = description.schema_versions;
    out.write_line(&format!("countersign {VERSION}"))?;
    out.write_line(&format!("features: {}", FEATURES.join(", ")))?;
    out.write_line(&format!("protocol versions: {}", description.protocol_versions.join(", ")))?;
    out.write_line(&format!("schema versions of the store: {sqlite} in SQLite, {postgresql} in PostgreSQL"))?;
    Ok(Exit::Ok)
}
