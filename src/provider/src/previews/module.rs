//! The preview of a module's tool, and who may see it.

use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};

use super::{
    fault::Fault,
    made::{self, Made},
};
use crate::{CallContext, Provider, ProviderDirectory, previews::arguments::of as plain};
use countersign_domain::{
    policy::Verdict,
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};

/// Where the proposer may not read what the preview rests on, a call that cannot be previewed becomes a change all the
/// same, which shows reviewers why: the refusal itself would tell what is there.
pub(super) async fn make(
    directory: &dyn ProviderDirectory,
    provider: &Arc<dyn Provider>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<Made, McpError> {
    let principal = Principal { role: Role::Agent, ..(*context.principal).clone() };
    let mut restricted = false;
    for (read, call) in provider.reads(tool, arguments)? {
        let unwritten = |_| McpError::new(ErrorKind::Internal, "the arguments of a call could not be written");
        let call = to_raw_value(&call).map_err(unwritten)?;
        restricted |= directory.verdict(provider.name(), read, &principal, &call) != Verdict::Allow;
    }
    let mut made = match provider.preview(tool, arguments, context).await {
        Ok(preview) => Made { preview, passing: None },
        Err(error) if restricted && !error.kind.passes() => {
            let def = provider.tools().into_iter().find(|def| def.name == tool).ok_or_else(|| error.clone())?;
            let fault = Fault::of_answer(tool, &error.message);
            made::failed(plain(provider.name(), tool, &def, arguments)?, fault)
        }
        Err(error) => return Err(error),
    };
    made.preview.note.restricted = restricted;
    Ok(made)
}
