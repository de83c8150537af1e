//! SQL statements that agents send to a database: whether they only read, and the queries that preview a write.
//!
//! A statement is a read only if every part of it is known to change nothing. What is not known, and what cannot be parsed, is
//! never a read. This crate runs no statement and knows nothing of the gateway.
//!
//! [`classify`] begins in `text`, which splits the text as the database does. `reads` decides what only reads, `writes` says
//! what a write changes, `previews` derives the queries that show it, and `lookup` those that read its effect back. A derived
//! query must be a read itself.

mod definitions;
mod dialect;
mod lookup;
mod names;
mod previews;
mod reads;
mod selection;
mod statement;
mod text;
mod writes;

use std::thread;

pub use dialect::Dialect;
pub use lookup::{DefinitionChange, Literal, ReadBack, TableRows};
pub use names::may_be_same_object;
pub use statement::{
    ColumnAssignment, ConflictRule, Effect, ObjectDefinition, PreviewSource, RowPreview, Statement, Write, WriteKind,
};

/// Stack of the thread that parses. Deep expressions take much of it, because the parser and the checks recurse.
const STACK_BYTES: usize = 64 << 20;
/// Aliases of the columns and tables that previews add to a query begin with this prefix.
pub const ALIAS_PREFIX: &str = "countersign_";

/// Classifies each statement of the text. The queries of previews select at most one row more than `max_rows`, so that a
/// caller sees that there are more.
pub fn classify(dialect: Dialect, text: &str, max_rows: usize) -> Vec<Statement> {
    let owned = text.to_owned();
    let parse = move || {
        text::split(dialect, &owned)
            .map(|pieces| pieces.iter().map(|piece| classify_statement(dialect, piece, max_rows)).collect())
    };
    let parser = thread::Builder::new().name("sql".to_owned()).stack_size(STACK_BYTES).spawn(parse);
    let result = match parser.map(thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err("the parser failed".to_owned()),
        Err(error) => Err(format!("no thread for the parser: {error}")),
    };
    result.unwrap_or_else(|reason| vec![Statement { text: text.to_owned(), effect: Effect::Unparsed { reason } }])
}

/// Returns `true` if the text has statements and each of them only reads.
pub fn is_read(dialect: Dialect, text: &str) -> bool {
    let statements = classify(dialect, text, 0);
    !statements.is_empty() && statements.iter().all(|statement| statement.effect == Effect::Read)
}

fn classify_statement(dialect: Dialect, piece: &text::StatementText, max_rows: usize) -> Statement {
    let effect = match piece.parse(dialect) {
        Err(reason) => Effect::Unparsed { reason },
        Ok(parsed) => match reads::check(dialect, &parsed) {
            Ok(()) => Effect::Read,
            Err(reason) => Effect::Write(previews::describe_write(dialect, &parsed.statement, reason, max_rows)),
        },
    };
    Statement { text: piece.source.clone(), effect }
}
