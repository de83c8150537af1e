//! Reading the audit trail: all of it, from outside and also while its gateway runs, or entries that are looked for.

use std::sync::Arc;

use deadpool_postgres::ClientWrapper;

use super::Values;
use crate::{
    StoreError,
    postgres::{Ground, connect, rows},
    rows::signed,
    search::{AuditSearch, FoundEntries, FoundEntry, PAGE, SPAN},
};
use countersign_domain::changes::audit::AuditEntry;

/// Hands every entry to `each`, the oldest first, in one snapshot and in bounded memory.
///
/// # Errors
/// Those of the database, and what `each` answers.
pub(in crate::postgres) fn read_audit<E: From<StoreError>>(
    ground: &Arc<Ground>,
    mut each: impl FnMut(&AuditEntry) -> Result<(), E>,
) -> Result<(), E> {
    let connecting = Arc::clone(ground);
    let client = ground.block(async move {
        let client = connecting.connect().await?;
        if connect::schema(&client).await?.is_none() {
            return Err(connect::nothing_there());
        }
        // However long it takes to print a page.
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
                     SET LOCAL idle_in_transaction_session_timeout = 0";
        client.batch_execute(begin).await?;
        Ok(Arc::new(client))
    })?;
    let mut after = 0;
    loop {
        // The trail has no gaps: these are the next ones, the newest first.
        let (client, next) = (Arc::clone(&client), after + u64::from(PAGE) + 1);
        let page = ground.block(async move { rows::audit_page(&client, None, Some(next), PAGE as usize).await })?;
        let Some(last) = page.first().map(|entry| entry.seq).filter(|seq| *seq > after) else { return Ok(()) };
        page.iter().rev().filter(|entry| entry.seq > after).try_for_each(&mut each)?;
        after = last;
    }
}

/// The newest entries below `before` that are looked for, at most `limit`.
pub(in crate::postgres) async fn search(
    client: &ClientWrapper,
    search: &AuditSearch,
    before: Option<u64>,
    limit: usize,
) -> Result<FoundEntries, StoreError> {
    let end = rows::heads(client).await?.audit.seq + 1;
    let top = before.map_or(end, |before| before.min(end));
    let bottom = if search.is_scan() { top.saturating_sub(SPAN) } else { 0 };
    let mut values = Values::default();
    let mut narrow = format!(" AND a.seq >= {}", values.add(signed(bottom)));
    for (column, names) in [("event", &search.events), ("actor", &search.actors)] {
        if !names.is_empty() {
            narrow.push_str(&format!(" AND a.{column} = ANY({})", values.add(names.clone())));
        }
    }
    if let Some(change) = &search.change {
        narrow.push_str(&format!(" AND a.change_id = {}", values.add(change.clone())));
    }
    let (top_at, page_at) = (values.add(signed(top)), values.add(i64::from(PAGE)));
    let sql = format!(
        "SELECT {}, c.title, s.needle FROM audit a
         LEFT JOIN changes c ON c.id = a.change_id LEFT JOIN change_search s ON s.no = c.no
         WHERE a.seq < {top_at}{narrow} ORDER BY a.seq DESC LIMIT {page_at}",
        rows::AUDIT
    );
    let wanted = search.text.as_ref().map(|text| text.to_lowercase());
    let mut entries: Vec<FoundEntry> = Vec::new();
    let mut below = signed(top);
    loop {
        // A page at a time: what is looked for may be among the first.
        let mut these = values.all();
        if let Some(place) = these.len().checked_sub(2) {
            these[place] = &below;
        }
        let page = rows::query(client, &sql, &these).await?;
        let Some(last) = page.last() else { break };
        let next: i64 = last.get(0);
        for row in &page {
            let entry = rows::audit_entry(row)?;
            if !search.holds(&entry, row.get(11), wanted.as_deref()) {
                continue;
            }
            if entries.len() == limit {
                let next = entries.last().map(|last| last.entry.seq);
                return Ok(FoundEntries { entries, next });
            }
            entries.push(FoundEntry { entry, title: row.get(10) });
        }
        if page.len() < PAGE as usize {
            break;
        }
        below = next;
    }
    Ok(FoundEntries { entries, next: (bottom > 1).then_some(bottom) })
}
