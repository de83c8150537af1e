//! Pages of the list of changes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    client::{Client, unexpected_response},
    exit::Failure,
};
use countersign_domain::changes::{Change, ChangeState};

/// The maximum number of changes of a page.
pub const MAX_PAGE_CHANGES: usize = 100;

/// A page of the list, as `GET /api/changes` returns it.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangePage {
    /// The JSON of each change, exactly as the gateway sent it.
    pub changes: Vec<Box<RawValue>>,
    pub next_cursor: Option<String>,
    #[serde(default)]
    pub counts: BTreeMap<ChangeState, u64>,
}

impl ChangePage {
    /// Fetches the page of at most `limit` changes after the cursor of the page before, or the first one.
    pub async fn fetch(
        client: &Client,
        filters: &[(&str, String)],
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Self, Failure> {
        let limit = limit.min(MAX_PAGE_CHANGES).to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(filters.iter().map(|(name, value)| (*name, value.as_str())));
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        client.get(&["changes"], &query).await?.read()
    }

    /// Parses the changes.
    pub fn parse(&self) -> Result<Vec<Change>, Failure> {
        self.changes.iter().map(|raw| Change::from_json(raw.get()).map_err(unexpected_response)).collect()
    }
}
