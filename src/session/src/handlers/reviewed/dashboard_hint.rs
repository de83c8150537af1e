//! Tells an agent's user, in the first result of a session that waits for approval, how to open the dashboard.
//!
//! A person who uses the gateway only through a desktop client never sees its terminal. The hint never contains a sign-in
//! code, because the agent reads it.

use crate::gateway::server::Reviews;
use countersign_domain::changes::Change;
use countersign_exchange::context::Exchange;
use countersign_telemetry::metrics::Transport;

/// Returns the hint for the first change of a session that waits for a decision. Stateless HTTP has no sessions and gets
/// no hint, because every request would repeat it.
pub fn dashboard_hint(exchange: &Exchange, reviews: &Reviews, change: &Change) -> Option<String> {
    let has_session = exchange.transport != Transport::Rest && exchange.session.holds_state();
    if !change.state.awaits_decision() || !has_session || !exchange.session.take_dashboard_hint() {
        return None;
    }
    Some(format!(
        "Tell your user: the change waits in the dashboard at {}. The command `{}`, run in a terminal on the gateway's \
         machine, signs in to the dashboard.",
        reviews.address.change_url(&change.id),
        reviews.address.open_command,
    ))
}
