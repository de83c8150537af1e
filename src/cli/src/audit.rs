//! `audit verify` and `audit export`: read the audit trail without a gateway, also while one runs.

use super::{
    args::{DataArgs, DataCommands, storage::AuditCommand},
    exit::{Exit, Failure},
    output::{Output, harmless_json, print_note},
    store_location,
};
use countersign_domain::{
    changes::{
        audit::AuditHead,
        export::{ExportFormat, TimeRange},
    },
    text::{irregular_plural, plural},
};
use countersign_store::{ReadAuditError, StoreError, VerifyError};

pub fn run(args: &DataCommands<AuditCommand>, out: &mut Output) -> Result<Exit, Failure> {
    let head = match &args.command {
        AuditCommand::Verify { head } => head,
        AuditCommand::Export { format, since, until } => {
            return export(&args.data, *format, TimeRange { since: *since, until: *until }, out);
        }
    };
    let parse = |text: &String| {
        let problem = format!("--head {text:?} is not a head; give SEQ:HASH as an earlier `audit verify` printed it");
        AuditHead::parse(text).ok_or_else(|| Failure::new(Exit::Usage, problem))
    };
    let expected = head.as_ref().map(parse).transpose()?;
    match store_location(&args.data)?.verify_audit(expected) {
        Ok(verified) => {
            out.write_line(&verified.head.export())?;
            out.finish()?;
            let policy = if verified.covered.policy { ", and so is the recorded policy in force" } else { "" };
            let head_note = if expected.is_some() { ", and it contains the given head" } else { "" };
            print_note(&format!(
                "The trail is intact: {}, {}, {}, {} and {} are as they were \
                 written{policy}{head_note}. The line above is its head; keep it elsewhere and give it to --head later.",
                irregular_plural(verified.entries, "entry", "entries"),
                plural(verified.changes, "change"),
                plural(verified.covered.keys, "key"),
                plural(verified.covered.pins, "definition"),
                plural(verified.covered.rules, "standing rule")
            ));
            if verified.covered.uncovered > 0 {
                print_note(&format!(
                    "{} of these keys, definitions, rules and policies are older than their records in the trail, so it cannot be verified \
                     that they are unaltered. They are recorded when a gateway of this version starts on the database.",
                    verified.covered.uncovered
                ));
            }
            if verified.unreadable_witness {
                print_note(
                    "The file audit.head in the data directory cannot be read, so it is unknown whether the last entries are \
                     lost.",
                );
            }
            Ok(Exit::Ok)
        }
        Err(VerifyError::Broken(broken)) => {
            Err(Failure::new(Exit::Failed, format!("the audit trail does not hold: {broken}")))
        }
        Err(VerifyError::Store(error @ StoreError::CutOff { .. })) => {
            Err(Failure::new(Exit::Failed, format!("the audit trail does not hold: {error}")))
        }
        Err(VerifyError::Store(error)) => Err(error.into()),
    }
}

fn export(data: &DataArgs, format: ExportFormat, span: TimeRange, out: &mut Output) -> Result<Exit, Failure> {
    let location = store_location(data)?;
    // A file contains every character, because the hashes cover them. On a terminal, control characters are escaped.
    let is_terminal = out.is_terminal;
    out.write_raw(&format.header())?;
    let mut text = String::new();
    let read = location.read_audit(&mut |entry| {
        if span.contains(entry) {
            text.clear();
            format.write_entry(entry, &mut text);
            match format {
                _ if !is_terminal => out.write_raw(&text)?,
                ExportFormat::Jsonl => out.write_raw(&harmless_json(&text))?,
                ExportFormat::Csv => out.write_line(text.trim_end())?,
            }
        }
        out.ensure_open()
    });
    match read {
        Ok(()) => Ok(Exit::Ok),
        Err(ReadAuditError::Store(error)) => Err(error.into()),
        Err(ReadAuditError::Output(error)) => Err(error.into()),
    }
}
