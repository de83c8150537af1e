//! `audit verify`: reads the trail from outside, also while the gateway runs.

use super::{
    args::{AuditArgs, AuditCommand},
    configuration,
    exit::{Exit, Failure},
    output::Output,
};
use crate::{
    changes::audit::AuditHead,
    store::{VerifyError, verify_audit},
};

pub fn run(args: &AuditArgs, out: &mut Output) -> Result<Exit, Failure> {
    let AuditCommand::Verify { head } = &args.command;
    let expected = match head {
        None => None,
        Some(text) => Some(AuditHead::parse(text).ok_or_else(|| {
            Failure::new(
                Exit::Usage,
                format!("--head {text:?} is no head; give SEQ:HASH as an earlier `audit verify` printed it"),
            )
        })?),
    };
    let data = configuration(&args.data.flags())?.config.data;
    match verify_audit(&data, expected) {
        Ok(verified) => {
            out.line(&verified.head.export())?;
            out.finish()?;
            let told = if expected.is_some() { ", and it contains the given head" } else { "" };
            super::output::remark(&format!(
                "The trail holds: {} entries and {} changes are as they were written{told}. The line above is its head; \
                 keep it elsewhere and give it to --head later.",
                verified.entries, verified.changes
            ));
            Ok(Exit::Ok)
        }
        Err(VerifyError::Broken(broken)) => {
            Err(Failure::new(Exit::Failed, format!("the audit trail does not hold: {broken}")))
        }
        Err(VerifyError::Store(error)) => Err(error.into()),
    }
}
