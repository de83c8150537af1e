//! Looks again at what a change was computed against: when it is approved, and just before it runs.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::inner::Inner;
use countersign_domain::{
    changes::{Change, ChangeFault, Preview, ServedBy},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, NoProgress, Provider};

/// Characters of a fault's message, and of a summary or a label.
const MAX_FAULT: usize = 1000;
const MAX_HEADLINE: usize = 500;

/// What was found.
pub(super) enum Recheck {
    /// Everything is as it was shown; the provider that may run it.
    Same(Arc<dyn Provider>),
    /// The target moved, or something else would run the call.
    Moved(Box<Moved>),
    /// It cannot be done any more, or not as shown: the tool is another one, or the preview refuses.
    Impossible(ChangeFault),
    /// Nobody can tell right now.
    Unavailable(McpError),
}

/// What a change would do now that what it was computed against is no more.
pub(super) struct Moved {
    pub preview: Preview,
    pub served_by: ServedBy,
    /// Why the diff that was shown does not hold.
    pub fault: ChangeFault,
}

impl Moved {
    /// Whether what moved is the target, and what would run the call is what was shown.
    pub(super) fn is_of(&self, change: &Change) -> bool {
        change.served_by.as_ref().is_some_and(|shown| shown.fingerprint == self.served_by.fingerprint)
    }
}

/// Fault of a change whose diff does not hold any more. Its proposer reads it too: nothing about addresses.
fn moved_fault(change: &Change, served_by: &ServedBy) -> ChangeFault {
    let message = match &change.served_by {
        Some(shown) if shown.fingerprint == served_by.fingerprint => "The target has changed since the diff was made",
        Some(_) => "The server has another command or address than when the diff was made",
        None => "It is not on record which command or address the server had when the diff was made",
    };
    ChangeFault { code: ErrorKind::ChangeStale.code().into(), message: message.into() }
}

/// What a provider's error leaves on the change.
pub(super) fn fault(error: &McpError) -> ChangeFault {
    let mut message = error.message.clone().into_owned();
    cut(&mut message, MAX_FAULT);
    ChangeFault { code: error.kind.code().into(), message }
}

/// Cuts a text that is repeated in every event to that many characters.
pub(super) fn cut(text: &mut String, max: usize) {
    if let Some((end, _)) = text.char_indices().nth(max) {
        text.truncate(end);
        text.push('…');
    }
}

/// Headlines of a preview stand in lists and in every event: bounded whatever the provider says.
pub(super) fn presentable(mut preview: Preview) -> Preview {
    cut(&mut preview.summary, MAX_HEADLINE);
    cut(&mut preview.target.label, MAX_HEADLINE);
    preview
}

/// The proposer: previews and runs happen on their behalf, with no more rights than an agent has.
pub(super) fn proposer(change: &Change) -> Arc<Principal> {
    Arc::new(Principal {
        name: change.proposer.principal.clone(),
        role: Role::Agent,
        key_id: change.proposer.key_id.clone(),
        owner: change.proposer.owner.clone(),
    })
}

/// Why a call cannot be previewed.
pub(super) enum Obstacle {
    /// It cannot be done, or the tool is another one.
    Impossible(McpError),
    /// Nobody can tell right now.
    Unavailable(McpError),
}

impl Inner {
    /// Previews again, as the proposer, and compares. The provider that it gives is the one that was compared: another
    /// that takes its name later is another value, and calls of this one fail then.
    pub(super) async fn recheck(&self, change: &Change) -> Recheck {
        match self.look(change, &change.arguments).await {
            Ok((provider, preview)) => {
                let served_by = provider.served_by();
                let known = change.served_by.as_ref().is_some_and(|shown| shown.fingerprint == served_by.fingerprint);
                let same =
                    preview.fingerprint == change.fingerprint && preview.target.lock_key == change.target.lock_key;
                if known && same {
                    return Recheck::Same(provider);
                }
                let fault = moved_fault(change, &served_by);
                Recheck::Moved(Box::new(Moved { preview: presentable(preview), served_by, fault }))
            }
            Err(Obstacle::Impossible(error)) => Recheck::Impossible(fault(&error)),
            Err(Obstacle::Unavailable(error)) => Recheck::Unavailable(error),
        }
    }

    /// Previews the change's tool with these arguments, as the proposer.
    pub(super) async fn look(
        &self,
        change: &Change,
        arguments: &RawValue,
    ) -> Result<(Arc<dyn Provider>, Preview), Obstacle> {
        let unavailable = |message: &'static str| {
            let error = McpError::new(ErrorKind::UpstreamUnavailable, message);
            Obstacle::Unavailable(error.with("provider", change.provider.as_str()))
        };
        let Some(provider) = self.directory.provider(&change.provider) else {
            return Err(unavailable("The provider of this change is not available"));
        };
        let hash = self.directory.tool_hash(&change.provider, &change.tool);
        if hash.is_none() && !self.directory.has_tools(&change.provider) {
            // Not reached since the start: that says nothing about the tool.
            return Err(unavailable("The provider of this change has not been reached yet"));
        }
        if hash.as_deref() != Some(change.tool_hash.as_str()) {
            // Its arguments were never checked against the new definition: to be proposed anew.
            return Err(Obstacle::Impossible(McpError::new(
                ErrorKind::ChangeStale,
                "The tool's definition has changed since this was proposed; propose it again",
            )));
        }
        provider.available().map_err(Obstacle::Unavailable)?;
        let cancel = CancellationToken::new();
        // Whatever ends the wait, the provider hears that nobody needs the answer.
        let _cancelled = cancel.clone().drop_guard();
        let context = CallContext {
            principal: proposer(change),
            cancel,
            progress: Arc::new(NoProgress),
            change_id: None,
            inquirer: None,
            session: None,
            permit: None,
            approved_state: None,
            meter: None,
        };
        let (tool, shown) = (&change.tool, &change.fingerprint);
        let preview =
            countersign_provider::previews::again(&*self.directory, &provider, tool, arguments, &context, shown);
        let preview = AssertUnwindSafe(preview).catch_unwind();
        match tokio::time::timeout(self.config.preview_timeout, preview).await {
            Ok(Ok(Ok(preview))) => Ok((provider, preview)),
            Ok(Ok(Err(error))) if error.kind.passes() => Err(Obstacle::Unavailable(error)),
            Ok(Ok(Err(error))) => Err(Obstacle::Impossible(error)),
            Ok(Err(_panic)) => {
                tracing::error!(change = %change.id, provider = %change.provider, tool = %change.tool, "a preview panicked");
                Err(Obstacle::Unavailable(McpError::new(ErrorKind::Internal, "The preview failed")))
            }
            Err(_) => Err(Obstacle::Unavailable(McpError::new(ErrorKind::Timeout, "The preview took too long"))),
        }
    }
}
