//! Keeps the lists of a server whose persons use accounts of their own: they are read with one of the accounts
//! (`PersonalUpstreams::choose_list_holder`). No request is sent without an account.

use std::sync::Arc;

use tokio::{sync::broadcast::error::RecvError, time::Interval};

use super::{ACCOUNT_CHECK_INTERVAL, IDLE_CHECK_INTERVAL, lists};
use crate::{
    catalog::Catalog,
    credentials::CredentialSource,
    server::{Phase, Upstream, accounts::PersonalUpstreams},
};
use countersign_provider::{List, ProviderEvent};

/// Runs until the upstream is closed. Must run only while persons use accounts of their own.
pub(super) async fn run(configured: &Arc<Upstream>) {
    configured.close_links();
    let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
    while let Some((accounts, personal_upstreams)) = configured.accounts.as_ref().zip(configured.personal_upstreams())
        && !configured.stop.is_cancelled()
    {
        match personal_upstreams.choose_list_holder(accounts.source.known_holders(&configured.config)) {
            Some(holder) => {
                let personal = configured.open_personal(personal_upstreams, &holder);
                follow_account(configured, (personal_upstreams, &*accounts.source), &personal, &mut idle_check).await;
            }
            None => {
                configured.set_consent_needed("must be connected first".to_owned());
                tokio::select! {
                    () = configured.stop.cancelled() => {}
                    () = configured.account_changed.notified() => {}
                    _ = idle_check.tick() => personal_upstreams.close_idle(),
                    // The list of accounts is read in the background, and each round sees what the previous one read.
                    () = tokio::time::sleep(ACCOUNT_CHECK_INTERVAL) => {}
                }
            }
        }
    }
}

/// Offers the lists of the person's account until it cannot be used or another account may be chosen.
async fn follow_account(
    configured: &Upstream,
    (personal_upstreams, source): (&PersonalUpstreams, &dyn CredentialSource),
    personal: &Upstream,
    idle_check: &mut Interval,
) {
    let (mut events, mut phases) = (personal.events.subscribe(), personal.phase.subscribe());
    loop {
        let phase = phases.borrow_and_update().clone();
        match phase {
            Phase::ConsentNeeded(_) => return,
            // One person's account must not keep the lists from the others.
            Phase::Down(_) if personal_upstreams.has_working_account(&source.known_holders(&configured.config)) => {
                return;
            }
            Phase::Up => {
                offer_lists(configured, personal);
                let _ = configured.change_phase(Phase::Up);
            }
            Phase::Connecting if configured.was_reached() => {}
            phase => _ = configured.change_phase(phase),
        }
        tokio::select! {
            () = configured.stop.cancelled() => return,
            () = personal.stop.cancelled() => return,
            () = configured.account_changed.notified() => return,
            changed = phases.changed() => if changed.is_err() { return },
            event = events.recv() => match event {
                Ok(ProviderEvent::ListChanged(_)) | Err(RecvError::Lagged(_)) if personal.was_reached() => {
                    offer_lists(configured, personal);
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            _ = idle_check.tick() => personal_upstreams.close_idle(),
        }
    }
}

/// Offers the lists of a person's account to everybody, without the resources, which are the person's own data.
fn offer_lists(configured: &Upstream, personal: &Upstream) {
    let before = configured.negotiated.swap(personal.negotiated());
    let instructions = |session: Option<Arc<crate::link::NegotiatedSession>>| session?.instructions.clone();
    if instructions(before) != instructions(personal.negotiated()) {
        configured.emit(ProviderEvent::ListChanged(List::Tools));
    }
    lists::publish(configured, Catalog { resources: Vec::new(), ..Catalog::clone(&personal.catalog()) }, Vec::new());
}
