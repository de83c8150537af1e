//! `changes watch` on a terminal: a full-screen inbox.
//!
//! [`model`], [`keys`] and [`prompt`] are a state machine, [`draw`] shows it, [`net`] talks to the gateway. Only the
//! loop here touches the terminal ([`terminal`]), the user's editor ([`super::editor`]) and signals.

mod detail;
mod diff;
mod draw;
mod keys;
mod model;
mod net;
mod paint;
mod prompt;
mod search;
mod terminal;
#[cfg(test)]
mod tests;
mod types;

use std::{collections::BTreeSet, io::IsTerminal, rc::Rc, time::Duration};

use actix_web::rt::task::JoinHandle;
use futures_util::StreamExt;
use jiff::Timestamp;
use ratatui::crossterm::event::{Event, EventStream, KeyEventKind};
use rustix::process::{Signal, kill_current_process_group};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, MissedTickBehavior},
};

use self::{
    model::{Action, App},
    net::{GatewayConnection, GatewayEvent},
    paint::Theme,
    terminal::Screen,
};
use super::{arguments::missing_approvals_message, editor::EditorFile};
use crate::{
    client::{Client, CurrentUser},
    exit::{Exit, Failure},
    output::{Style, indented},
};
use countersign_domain::changes::{Change, ChangeState};
use countersign_runtime::background;

/// Maximum number of updated changes that are fetched one by one. If there are more, the list is fetched.
const MAX_SINGLE_RELOADS: usize = 10;
/// Maximum number of gateway events that wait for the loop.
const EVENT_QUEUE_LENGTH: usize = 64;
/// The delay before updates are fetched, so that several are fetched together.
const RELOAD_DELAY: Duration = Duration::from_millis(150);

/// Returns `true` if stdin and stdout are a terminal that supports a full screen.
pub fn is_possible() -> bool {
    let supports_full_screen = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    supports_full_screen && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

struct Inbox {
    app: App,
    net: GatewayConnection,
    screen: Screen,
    /// `None` while an editor or the shell has the keyboard.
    terminal_events: Option<EventStream>,
    /// The task that fetches the list.
    list_task: Option<JoinHandle<()>>,
    /// The number of the last request for the list. Answers to earlier ones are ignored.
    list_request: u64,
    updated_ids: BTreeSet<String>,
    must_reload_list: bool,
}

/// Runs the inbox until the user quits.
///
/// # Errors
/// Fails if the gateway refuses a request or the terminal cannot be used.
pub async fn run(client: Client) -> Result<Exit, Failure> {
    // The user is fetched before the screen is taken over, so that a wrong key or address is reported as plain text.
    let me: CurrentUser = client.get(&["me"], &[]).await?.read()?;
    let (events, mut received) = mpsc::channel(EVENT_QUEUE_LENGTH);
    let net = GatewayConnection { client: Rc::new(client), events };
    let feed = background::spawn(net.clone().follow());
    let mut inbox = Inbox {
        app: App::new(me, Theme::from_env(), Timestamp::now()),
        net,
        screen: Screen::new()?,
        terminal_events: Some(EventStream::new()),
        list_task: None,
        list_request: 0,
        updated_ids: BTreeSet::new(),
        must_reload_list: false,
    };
    let result = inbox.run_until_quit(&mut received).await;
    feed.abort();
    result
}

impl Inbox {
    async fn run_until_quit(&mut self, received: &mut mpsc::Receiver<GatewayEvent>) -> Result<Exit, Failure> {
        let mut terminations = signal(SignalKind::terminate())?;
        let mut hangups = signal(SignalKind::hangup())?;
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut continuations = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reload_at = None;
        loop {
            self.draw()?;
            let has_reloads = !self.updated_ids.is_empty() || self.must_reload_list;
            // Events that arrive meanwhile do not postpone the reload.
            reload_at = has_reloads.then(|| reload_at.unwrap_or_else(|| Instant::now() + RELOAD_DELAY));
            let action = tokio::select! {
                biased;
                _ = terminations.recv() => return Ok(Exit::Ok),
                _ = hangups.recv() => return Ok(Exit::Ok),
                _ = interrupts.recv() => return Ok(Exit::Ok),
                _ = continuations.recv() => {
                    self.screen.resume()?;
                    None
                }
                () = tokio::time::sleep_until(reload_at.unwrap_or_else(Instant::now)), if has_reloads => {
                    self.reload_updated();
                    None
                }
                event = async { self.terminal_events.as_mut()?.next().await } => match event {
                    Some(Ok(event)) => self.handle_terminal_event(event),
                    // The terminal is gone.
                    Some(Err(_)) | None => return Ok(Exit::Ok),
                },
                Some(event) = received.recv() => {
                    self.handle_event(event)?;
                    None
                }
                _ = ticks.tick() => None,
            };
            match action {
                None => {}
                Some(Action::Quit) => return Ok(Exit::Ok),
                Some(Action::Repaint) => self.screen.redraw()?,
                Some(Action::Suspend) => self.suspend()?,
                Some(Action::Load) => self.load(),
                Some(Action::Open(id)) => self.net.load_change(id, true, true),
                Some(Action::Post { path, body, done_message }) => self.post(path, body, done_message),
                Some(Action::Decide(bodies)) => {
                    bodies.into_iter().for_each(|body| self.post(vec!["decisions".into()], body, "Decided"));
                }
                Some(Action::Editor { id, version, text }) => {
                    if self.edit(id, version, &text, &mut terminations, &mut hangups).await? {
                        return Ok(Exit::Ok);
                    }
                    // Ctrl-C in the editor was meant for the editor.
                    interrupts = signal(SignalKind::interrupt())?;
                }
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let size = self.screen.terminal.size()?;
        self.app.size = (size.width, size.height);
        self.app.now = Timestamp::now();
        self.app.layout();
        let app = &self.app;
        self.screen.terminal.draw(|frame| draw::screen(app, frame))?;
        Ok(())
    }

    fn handle_terminal_event(&mut self, event: Event) -> Option<Action> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.app.handle_key(key),
            Event::Paste(text) => {
                self.app.paste(&text);
                None
            }
            _ => None,
        }
    }

    fn post(&mut self, path: Vec<String>, body: String, done_message: &'static str) {
        self.app.requests_in_flight += 1;
        self.net.post(path, body, done_message);
    }

    fn load(&mut self) {
        if let Some(before) = self.list_task.take() {
            before.abort();
        }
        self.list_request += 1;
        (self.must_reload_list, self.app.is_loading) = (false, true);
        self.net.load_bundles();
        self.list_task = Some(self.net.load_list(self.list_request, self.app.query()));
    }

    /// Fetches the changes that were updated.
    fn reload_updated(&mut self) {
        let updated_ids = std::mem::take(&mut self.updated_ids);
        let is_listed = |id: &String| self.app.changes.iter().any(|entry| entry.id == *id);
        // With a search, only the gateway knows whether a new change matches.
        let may_match_search = !self.app.search.is_empty() && !updated_ids.iter().all(is_listed);
        let shown_id = self.app.detail.as_ref().map(|detail| detail.change.id.clone());
        if self.must_reload_list || may_match_search || updated_ids.len() > MAX_SINGLE_RELOADS {
            if let Some(change_id) = shown_id {
                self.net.load_change(change_id, false, true);
            }
            return self.load();
        }
        for id in updated_ids {
            let with_timeline = shown_id.as_ref() == Some(&id);
            self.net.load_change(id, false, with_timeline);
        }
        self.net.load_counts();
        self.net.load_bundles();
    }

    fn handle_event(&mut self, event: GatewayEvent) -> Result<(), Failure> {
        let app = &mut self.app;
        match event {
            GatewayEvent::Listed { request, first, page, counts, has_more } if request == self.list_request => {
                app.add_page(first, page, counts, has_more);
            }
            GatewayEvent::ListFailed { request, reason } if request == self.list_request => {
                app.is_loading = false;
                app.set_status(Style::Red, reason);
            }
            GatewayEvent::Listed { .. } | GatewayEvent::ListFailed { .. } => {}
            GatewayEvent::Counts(counts) => app.counts = counts,
            GatewayEvent::Bundles(bundles) => app.set_bundles(bundles),
            GatewayEvent::Change { change, show } => app.update_change(*change, show),
            GatewayEvent::Timeline { id, entries } => app.set_timeline(&id, entries),
            GatewayEvent::Done { answer, done_message, is_bulk } => {
                app.requests_in_flight = app.requests_in_flight.saturating_sub(1);
                if is_bulk {
                    let ids = app.show_results(&answer.read()?);
                    self.updated_ids.extend(ids);
                } else {
                    let change = answer.read_change()?;
                    app.drafts.remove(&change.id);
                    app.set_status(Style::Green, outcome_message(done_message, &change));
                    // Only an open change is updated: a late answer must not open it again.
                    let is_shown = app.detail.as_ref().is_some_and(|d| d.change.id == change.id);
                    self.updated_ids.insert(change.id.clone());
                    app.update_change(change, is_shown);
                }
            }
            GatewayEvent::Refused { message, id } => {
                app.requests_in_flight = app.requests_in_flight.saturating_sub(1);
                app.set_status(Style::Red, message);
                // The request was refused because the change differs from what was shown.
                app.expected_change.clone_from(&id);
                self.updated_ids.extend(id);
            }
            GatewayEvent::ReadFailed(message) => app.set_status(Style::Red, message),
            GatewayEvent::FeedConnected => {
                app.is_feed_connected = true;
                self.must_reload_list = true;
            }
            GatewayEvent::FeedLost => app.is_feed_connected = false,
            GatewayEvent::Updated(id) => {
                self.updated_ids.insert(id);
            }
            GatewayEvent::FeedFailed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Handles Ctrl-Z: restores the terminal and stops, like any other program.
    fn suspend(&mut self) -> Result<(), Failure> {
        self.terminal_events = None;
        self.screen.suspend();
        let _ = kill_current_process_group(Signal::TSTP);
        // Execution continues here after `fg`.
        self.screen.resume()?;
        self.terminal_events = Some(EventStream::new());
        Ok(())
    }

    /// Runs the user's editor, and returns `true` if the process is to end.
    async fn edit(
        &mut self,
        id: String,
        version: u64,
        text: &str,
        terminations: &mut tokio::signal::unix::Signal,
        hangups: &mut tokio::signal::unix::Signal,
    ) -> Result<bool, Failure> {
        self.terminal_events = None;
        self.screen.suspend();
        let edited = tokio::select! {
            _ = terminations.recv() => return Ok(true),
            _ = hangups.recv() => return Ok(true),
            edited = async { EditorFile::new(text)?.edit().await } => edited,
        };
        self.screen.resume()?;
        self.terminal_events = Some(EventStream::new());
        match edited {
            Ok(after) => {
                let original = self.app.detail.as_ref().filter(|d| d.change.id == id);
                let original = original.map_or_else(String::new, |d| indented(d.change.arguments.get()));
                self.app.submit_edit(id, version, &original, after);
            }
            Err(error) => self.app.set_status(Style::Red, format!("The editor: {error}; nothing was changed.")),
        }
        Ok(false)
    }
}

/// Describes the outcome of a request.
fn outcome_message(done_message: &str, change: &Change) -> String {
    match (done_message, change.state) {
        ("Approved", ChangeState::Pending) => missing_approvals_message(change),
        ("Approved", ChangeState::Stale) => "What was shown no longer holds; look at it again.".to_owned(),
        ("Approved", ChangeState::Approved) if change.run_after.is_some() => {
            format!("Approved; u undoes it within {}s.", change.terms.undo_for)
        }
        _ => format!("{done_message}; the change is {}.", change.state.as_str()),
    }
}
