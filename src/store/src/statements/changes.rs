//! Reads lists of changes and the events of other nodes. Every statement uses an index.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    ChangeCriteria, ListQuery, Listing, LiveChange, MAX_PAGE_BYTES, RemoteEvent, StoreError, StoredEvent,
    rows::{parse_change, parse_state},
    sql::{Parameters, Row, Sql},
    values,
};
use countersign_domain::changes::ChangeState;

/// The maximum subqueries in one statement.
const MAX_QUERIES_PER_STATEMENT: usize = 100;

pub async fn list_live<S: Sql>(db: &S) -> Result<Vec<LiveChange>, StoreError> {
    let mut parameters = Parameters::default();
    let open = ChangeState::VARIANTS.iter().filter(|state| !state.is_final()).map(|state| state.as_str());
    let sql = format!(
        "SELECT c.id, c.state, c.principal, c.bytes, c.expires_at, s.call_hash, c.plan_id
         FROM changes c LEFT JOIN change_search s ON s.no = c.no WHERE c.state IN {} ORDER BY c.no",
        parameters.add_all(open)
    );
    let read = |row: &Row| -> Result<LiveChange, StoreError> {
        Ok(LiveChange {
            id: row.get(0)?,
            state: parse_state(row.get(1)?)?,
            principal: row.get(2)?,
            bytes: row.get(3)?,
            expires_at: row.get(4)?,
            call_hash: row.get(5)?,
            plan: row.get(6)?,
        })
    };
    db.rows(&sql, &parameters.values()).await?.iter().map(read).collect()
}

/// Reads an event from a row of its number, kind and data.
pub fn read_event(row: &Row) -> Result<StoredEvent, StoreError> {
    Ok(StoredEvent { seq: row.get(0)?, kind: row.get(1)?, data: row.get(2)? })
}

/// Reads events. Those of created changes come with the size and the call hash of the change.
pub async fn remote_events_after<S: Sql>(db: &S, after: u64, limit: usize) -> Result<Vec<RemoteEvent>, StoreError> {
    let sql = "SELECT e.seq, e.kind, e.data, c.bytes, s.call_hash FROM events e
               LEFT JOIN changes c ON e.kind = 'change.created' AND c.id = e.change_id
               LEFT JOIN change_search s ON s.no = c.no
               WHERE e.seq > ?1 ORDER BY e.seq LIMIT ?2";
    let read = |row: &Row| -> Result<RemoteEvent, StoreError> {
        Ok(RemoteEvent {
            event: read_event(row)?,
            bytes: row.get::<Option<u64>>(3)?.unwrap_or(0),
            call_hash: row.get(4)?,
        })
    };
    db.rows(sql, values![after, limit]).await?.iter().map(read).collect()
}

/// A page of stored changes.
pub struct Page {
    bodies: Vec<Row>,
    more: bool,
}

impl Page {
    /// Parses the page.
    pub fn parse(self) -> Result<Listing, StoreError> {
        let read = |row: &Row| Ok((row.get(0)?, parse_change(row.get(1)?)?));
        Ok(Listing { items: self.bodies.iter().map(read).collect::<Result<_, StoreError>>()?, more: self.more })
    }
}

/// Reads a page of changes, newest first. Each pair of state and principal gets its own indexed subquery, so that a
/// long history in other states costs nothing.
pub async fn list<S: Sql>(db: &S, query: &ListQuery) -> Result<Page, StoreError> {
    let mut selectors: Vec<(Option<ChangeState>, Option<&str>)> = vec![(None, None)];
    if !query.states.is_empty() || !query.principals.is_empty() {
        let states = if query.states.is_empty() { ChangeState::VARIANTS } else { &query.states };
        let mut principals: Vec<Option<&str>> = query.principals.iter().map(|name| Some(name.as_str())).collect();
        if principals.is_empty() {
            principals.push(None);
        }
        selectors = states.iter().flat_map(|state| principals.iter().map(|name| (Some(*state), *name))).collect();
    }
    // Changes by number, newest first. The map removes duplicates, because the query may name a state twice.
    let mut lengths: BTreeMap<Reverse<i64>, usize> = BTreeMap::new();
    for selectors in selectors.chunks(MAX_QUERIES_PER_STATEMENT) {
        let (sql, parameters) = page_statement::<S>(query, selectors);
        for row in db.rows(&sql, &parameters.values()).await? {
            lengths.insert(Reverse(row.get(0)?), row.get(1)?);
        }
    }
    let (mut bytes, mut numbers, mut more) = (0, Vec::new(), false);
    for (Reverse(no), length) in lengths {
        if numbers.len() >= query.limit || (bytes + length > MAX_PAGE_BYTES && !numbers.is_empty()) {
            more = true;
            break;
        }
        bytes += length;
        numbers.push(no);
    }
    if numbers.is_empty() {
        return Ok(Page { bodies: Vec::new(), more });
    }
    let mut parameters = Parameters::default();
    let sql = format!("SELECT no, body FROM changes WHERE no IN {} ORDER BY no DESC", parameters.add_all(numbers));
    Ok(Page { bodies: db.rows(&sql, &parameters.values()).await?, more })
}

/// Returns the conditions on `s`, a row of `change_search`. Each condition begins with `AND`.
fn conditions<S: Sql>(criteria: &ChangeCriteria, parameters: &mut Parameters) -> String {
    let mut sql = String::new();
    for (column, names) in [("provider", &criteria.providers), ("tool", &criteria.tools)] {
        if !names.is_empty() {
            sql.push_str(&format!(" AND s.{column} IN {}", parameters.add_all(names)));
        }
    }
    if let Some(text) = &criteria.text {
        sql.push_str(&format!(" AND {}(s.needle, {}) > 0", S::DIALECT.find, parameters.add(&text.to_lowercase())));
    }
    if let Some(since) = criteria.since {
        sql.push_str(&format!(" AND s.created_ms >= {}", parameters.add(since.as_millisecond())));
    }
    if let Some(until) = criteria.until {
        sql.push_str(&format!(" AND s.created_ms < {}", parameters.add(until.as_millisecond())));
    }
    sql
}

/// Builds the statement that reads the numbers and lengths of the changes of a page, and of one more.
fn page_statement<S: Sql>(
    query: &ListQuery,
    selectors: &[(Option<ChangeState>, Option<&str>)],
) -> (String, Parameters) {
    let mut parameters = Parameters::default();
    let before = parameters.add(query.before.unwrap_or(u64::MAX));
    let limit = parameters.add(query.limit.saturating_add(1));
    let criteria = conditions::<S>(&query.criteria, &mut parameters);
    let mut parts = Vec::with_capacity(selectors.len());
    for (state, principal) in selectors {
        let principal =
            principal.map_or_else(String::new, |name| format!(" AND c.principal = {}", parameters.add(name)));
        let state =
            state.map_or_else(String::new, |state| format!(" AND c.state = {}", parameters.add(state.as_str())));
        let (table, from) = match (query.criteria.is_empty(), state.is_empty()) {
            (true, _) => ("c", "changes c".to_owned()),
            (false, true) => ("s", "change_search s".to_owned()),
            // The join follows the index of `changes`, whose order is that of the numbers.
            (false, false) => ("c", format!("changes c {} change_search s ON s.no = c.no", S::DIALECT.join_in_order)),
        };
        parts.push(format!(
            "SELECT no FROM (SELECT {table}.no FROM {from} WHERE {table}.no < {before}{principal}{state}{criteria}
             ORDER BY {table}.no DESC LIMIT {limit}) part"
        ));
    }
    let sql = format!(
        "SELECT c.no, octet_length(c.body) FROM ({}) found JOIN changes c ON c.no = found.no
         ORDER BY c.no DESC LIMIT {limit}",
        parts.join(" UNION ")
    );
    (sql, parameters)
}
