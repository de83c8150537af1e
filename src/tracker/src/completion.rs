//! Completion of keys and ids in resource templates, and of the prompts' arguments.

use jiff::{SignedDuration, Timestamp};

use super::{
    db::{Db, Sql, failed, values},
    prompts,
    uri::SCHEME,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{Completion, CompletionRef};

/// Values in one answer (2026-07-28/server/utilities/completion).
const VALUES: i64 = 100;
/// Bytes of a typed beginning that can still match something.
const TYPED_MAX: usize = 64;

/// What can stand for a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Domain {
    Projects,
    Issues,
    Fixed(&'static [&'static str]),
    PastDays,
    /// Anything goes, so nothing is offered.
    Free,
}

fn domain(reference: &CompletionRef, argument: &str) -> Result<Domain, McpError> {
    let unknown = |what: String| McpError::new(ErrorKind::InvalidParams, what);
    match reference {
        CompletionRef::Prompt(name) => {
            let prompt = prompts::list().into_iter().find(|p| p.name == *name);
            let prompt = prompt.ok_or_else(|| prompts::unknown(name))?;
            if !prompt.arguments.iter().any(|a| a.name == argument) {
                let shown: String = argument.chars().take(64).collect();
                return Err(unknown(format!("The prompt has no argument `{shown}`.")));
            }
            Ok(match argument {
                "project" => Domain::Projects,
                "since" => Domain::PastDays,
                "capacity_hours" => Domain::Fixed(&["20", "40", "60", "80", "120", "160", "240"]),
                _ => Domain::Free,
            })
        }
        CompletionRef::ResourceTemplate(uri) => {
            let known = super::resources::templates().iter().any(|t| t.uri_template == *uri);
            if !known || argument != "key" {
                let shown: String = uri.chars().take(200).collect();
                return Err(unknown(format!("There is no template `{shown}` with that variable.")).with("uri", shown));
            }
            let issues = uri.strip_prefix(SCHEME).is_some_and(|path| path.starts_with("issues/"));
            Ok(if issues { Domain::Issues } else { Domain::Projects })
        }
    }
}

/// Values that begin with what was typed, whatever its case.
pub(super) fn complete(
    db: Db<'_>,
    reference: &CompletionRef,
    argument: &str,
    typed: &str,
) -> Result<Completion, McpError> {
    let domain = domain(reference, argument)?;
    if typed.len() > TYPED_MAX {
        return Ok(Completion { total: Some(0), ..Completion::default() });
    }
    match domain {
        Domain::Free => Ok(Completion { total: Some(0), ..Completion::default() }),
        Domain::Fixed(values) => Ok(filtered(values.iter().map(|v| (*v).to_owned()), typed)),
        Domain::PastDays => Ok(filtered(past_days(Timestamp::now()), typed)),
        Domain::Projects => from_table(db, "projects", "key", typed).map_err(|e| failed(&e)),
        Domain::Issues => from_table(db, "issues", "project, number", typed).map_err(|e| failed(&e)),
    }
}

fn filtered(values: impl Iterator<Item = String>, typed: &str) -> Completion {
    let values: Vec<String> = values.filter(|v| v.starts_with(typed)).collect();
    Completion { total: Some(values.len() as u64), values, has_more: false }
}

/// Today and some days before it, as dates in UTC.
fn past_days(now: Timestamp) -> impl Iterator<Item = String> {
    [1, 2, 3, 7, 14, 30, 90].into_iter().filter_map(move |days| {
        let day = now.checked_sub(SignedDuration::from_hours(24 * days)).ok()?;
        Some(day.strftime("%Y-%m-%d").to_string())
    })
}

/// Keys with that beginning; ids where no key has it.
fn from_table(db: Db<'_>, table: &str, order: &str, typed: &str) -> Sql<Completion> {
    let plain = typed.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    if !plain {
        return Ok(Completion { total: Some(0), ..Completion::default() });
    }
    let by_key = beginning(db, table, "key", order, &typed.to_ascii_uppercase())?;
    if by_key.total != Some(0) {
        return Ok(by_key);
    }
    beginning(db, table, "uuid", "uuid", &typed.to_ascii_lowercase())
}

/// `typed` is plain ASCII, so that the range below is exactly the values that begin with it.
fn beginning(db: Db<'_>, table: &str, column: &str, order: &str, typed: &str) -> Sql<Completion> {
    let end = format!("{typed}\u{7f}");
    let condition = format!("FROM {table} WHERE {column} >= ?1 AND {column} < ?2");
    let total: i64 = db.one(&format!("SELECT COUNT(*) {condition}"), values![typed, &end], |row| row.get(0))?;
    let sql = format!("SELECT {column} {condition} ORDER BY {order} LIMIT ?3");
    let values: Vec<String> = db.all(&sql, values![typed, &end, VALUES], |row| row.get(0))?;
    Ok(Completion { values, total: u64::try_from(total).ok(), has_more: total > VALUES })
}
