//! Listings of changes.

use deadpool_postgres::ClientWrapper;

use super::Values;
use crate::{
    ListQuery, Listing, MAX_PAGE_BYTES, Narrow, StoreError,
    postgres::rows::query,
    rows::{parse_change, signed, unsigned},
};
use countersign_domain::changes::ChangeState;

/// Conditions on `s`, a row of `change_search`, each with `AND` before it.
fn conditions(narrow: &Narrow, values: &mut Values) -> String {
    let mut sql = String::new();
    for (column, names) in [("provider", &narrow.providers), ("tool", &narrow.tools)] {
        if !names.is_empty() {
            sql.push_str(&format!(" AND s.{column} = ANY({})", values.add(names.clone())));
        }
    }
    if let Some(text) = &narrow.text {
        sql.push_str(&format!(" AND strpos(s.needle, {}) > 0", values.add(text.replace('\0', "").to_lowercase())));
    }
    if let Some(since) = narrow.since {
        sql.push_str(&format!(" AND s.created_ms >= {}", values.add(since.as_millisecond())));
    }
    if let Some(until) = narrow.until {
        sql.push_str(&format!(" AND s.created_ms < {}", values.add(until.as_millisecond())));
    }
    sql
}

/// A page as it is stored.
pub(in crate::postgres) struct Found {
    bodies: Vec<(i64, String)>,
    more: bool,
}

impl Found {
    /// Where the caller is, and not on the thread that reads.
    pub fn parsed(self) -> Result<Listing, StoreError> {
        let read = |(no, body): (i64, String)| Ok((unsigned(no)?, parse_change(&body)?));
        Ok(Listing { items: self.bodies.into_iter().map(read).collect::<Result<_, StoreError>>()?, more: self.more })
    }
}

/// A page of changes, newest first.
pub(in crate::postgres) async fn list(client: &ClientWrapper, wanted: &ListQuery) -> Result<Found, StoreError> {
    let (sql, values) = statement(wanted);
    let (mut bytes, mut numbers, mut more) = (0, Vec::new(), false);
    for row in query(client, &sql, &values.all()).await? {
        let (no, len): (i64, i32) = (row.get(0), row.get(1));
        let len = usize::try_from(len).unwrap_or(0);
        if numbers.len() >= wanted.limit || (bytes + len > MAX_PAGE_BYTES && !numbers.is_empty()) {
            more = true;
            break;
        }
        bytes += len;
        numbers.push(no);
    }
    let rows = query(client, "SELECT no, body FROM changes WHERE no = ANY($1) ORDER BY no DESC", &[&numbers]).await?;
    Ok(Found { bodies: rows.iter().map(|row| (row.get(0), row.get(1))).collect(), more })
}

/// The numbers and lengths of the page, and of one more if there is one. One query within an index for each state and
/// principal, put together: a long history in other states costs nothing.
fn statement(wanted: &ListQuery) -> (String, Values) {
    let mut values = Values::default();
    let before = values.add(wanted.before.map_or(i64::MAX, signed));
    let limit = values.add(signed(wanted.limit as u64).saturating_add(1));
    let narrow = conditions(&wanted.narrow, &mut values);
    let from = if wanted.narrow.is_empty() { "" } else { " JOIN change_search s ON s.no = c.no" };
    let part = |who: &str| {
        format!(
            "(SELECT c.no FROM changes c{from} WHERE c.no < {before}{who}{narrow} ORDER BY c.no DESC LIMIT {limit})"
        )
    };
    let mut parts = Vec::new();
    if wanted.states.is_empty() && wanted.principals.is_empty() {
        parts.push(part(""));
    } else {
        let states = if wanted.states.is_empty() { &ChangeState::ALL[..] } else { &wanted.states };
        let principals: Vec<String> =
            wanted.principals.iter().map(|name| format!(" AND c.principal = {}", values.add(name.clone()))).collect();
        for state in states {
            let state = format!(" AND c.state = {}", values.add(state.as_str()));
            if principals.is_empty() {
                parts.push(part(&state));
            }
            parts.extend(principals.iter().map(|principal| part(&format!("{principal}{state}"))));
        }
    }
    // A state may have been named twice: `UNION` keeps one of each.
    let sql = format!(
        "SELECT c.no, octet_length(c.body) FROM ({}) AS found JOIN changes c ON c.no = found.no
         ORDER BY c.no DESC LIMIT {limit}",
        parts.join(" UNION ")
    );
    (sql, values)
}
