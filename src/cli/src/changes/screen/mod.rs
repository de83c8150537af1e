//! `changes watch` in a terminal: a full-screen inbox to decide in.
//!
//! [`model`], [`keys`] and [`asked`] are a state machine, [`draw`] shows it, [`net`] speaks to the gateway; the loop here is the
//! only part that touches the terminal ([`terminal`]), the person's editor ([`editor`]) and signals.

mod asked;
mod detail;
mod diff;
mod draw;
mod editor;
mod keys;
mod model;
mod net;
mod paint;
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
    time::MissedTickBehavior,
};

use self::{
    model::{Action, App, Me, Tone},
    net::{Net, News},
    paint::Paint,
    terminal::Screen,
};
use super::arguments::waits_for;
use crate::{
    client::Client,
    exit::{Exit, Failure},
};
use countersign_domain::changes::Change;

/// Moved changes that are read one by one; more are read as a list.
const FEW: usize = 10;
/// News that wait for the loop.
const NEWS: usize = 64;
/// What happened meanwhile is read together.
const TOGETHER: Duration = Duration::from_millis(150);

/// Whether a full screen is possible: both ends are a terminal that can do more than a typewriter.
pub fn possible() -> bool {
    let able = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    able && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}

struct Inbox {
    app: App,
    net: Net,
    screen: Screen,
    /// Keys; none while they are somebody else's.
    keys: Option<EventStream>,
    /// The last request of the list, and its number.
    list: Option<JoinHandle<()>>,
    request: u64,
    moved: BTreeSet<String>,
    again: bool,
}

/// Runs until the person ends it.
///
/// # Errors
/// The gateway refuses, or the terminal cannot be used.
pub async fn run(client: &Rc<Client>) -> Result<Exit, Failure> {
    // Before the screen is taken: what is wrong with the key or the address is a plain message.
    let me: Me = client.get(&["me"], &[]).await?.read()?;
    let (news, mut arriving) = mpsc::channel(NEWS);
    let net = Net { client: Rc::clone(client), news };
    let feed = actix_web::rt::spawn(net.clone().follow());
    let mut inbox = Inbox {
        app: App::new(me, Paint::of_process(), Timestamp::now()),
        net,
        screen: Screen::take()?,
        keys: Some(EventStream::new()),
        list: None,
        request: 0,
        moved: BTreeSet::new(),
        again: false,
    };
    let done = inbox.live(&mut arriving).await;
    feed.abort();
    done
}

impl Inbox {
    async fn live(&mut self, arriving: &mut mpsc::Receiver<News>) -> Result<Exit, Failure> {
        let mut ends = signal(SignalKind::terminate())?;
        let mut hangs_up = signal(SignalKind::hangup())?;
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut continues = signal(SignalKind::from_raw(Signal::CONT.as_raw()))?;
        let mut ticks = tokio::time::interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.draw()?;
            let gathered = !self.moved.is_empty() || self.again;
            let action = tokio::select! {
                biased;
                _ = ends.recv() => return Ok(Exit::Ok),
                _ = hangs_up.recv() => return Ok(Exit::Ok),
                _ = interrupts.recv() => return Ok(Exit::Ok),
                _ = continues.recv() => {
                    self.screen.back()?;
                    None
                }
                event = next(&mut self.keys) => match event {
                    Some(Ok(event)) => self.event(event),
                    // The terminal is gone.
                    Some(Err(_)) | None => return Ok(Exit::Ok),
                },
                Some(news) = arriving.recv() => {
                    self.news(news)?;
                    None
                }
                () = tokio::time::sleep(TOGETHER), if gathered => {
                    self.catch_up();
                    None
                }
                _ = ticks.tick() => None,
            };
            match action {
                None => {}
                Some(Action::Quit) => return Ok(Exit::Ok),
                Some(Action::Repaint) => self.screen.anew()?,
                Some(Action::Suspend) => self.suspend()?,
                Some(Action::Load) => self.load(),
                Some(Action::Open(id)) => self.net.change(id, true, true),
                Some(Action::Post { path, body, said }) => {
                    self.app.busy += 1;
                    self.net.post(path, body, said);
                }
                Some(Action::Editor { id, version, text }) => {
                    if self.edit(id, version, &text, &mut ends, &mut hangs_up).await? {
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
        self.app.lay_out();
        let app = &self.app;
        self.screen.terminal.draw(|frame| draw::screen(app, frame))?;
        Ok(())
    }

    fn event(&mut self, event: Event) -> Option<Action> {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.app.key(key),
            Event::Paste(text) => {
                self.app.pasted(&text);
                None
            }
            _ => None,
        }
    }

    fn load(&mut self) {
        if let Some(before) = self.list.take() {
            before.abort();
        }
        self.request += 1;
        (self.again, self.app.loading) = (false, true);
        self.list = Some(self.net.list(self.request, self.app.query()));
    }

    /// Reads again what moved.
    fn catch_up(&mut self) {
        let moved = std::mem::take(&mut self.moved);
        let known = |id: &String| self.app.changes.iter().any(|b| b.id == *id);
        // With a search, only the gateway knows whether a new change matches.
        let new = !self.app.search.is_empty() && !moved.iter().all(known);
        let shown = self.app.detail.as_ref().map(|detail| detail.change.id.clone());
        if self.again || new || moved.len() > FEW {
            if let Some(shown) = shown {
                self.net.change(shown, false, true);
            }
            return self.load();
        }
        for id in moved {
            let trail = shown.as_ref() == Some(&id);
            self.net.change(id, false, trail);
        }
        self.net.count();
    }

    fn news(&mut self, news: News) -> Result<(), Failure> {
        let app = &mut self.app;
        match news {
            News::Listed { request, first, page, counts, more } if request == self.request => {
                app.listed(first, page, counts, more);
            }
            News::NotListed { request, why } if request == self.request => {
                app.loading = false;
                app.say(Tone::Bad, why);
            }
            News::Listed { .. } | News::NotListed { .. } => {}
            News::Counts(counts) => app.counts = counts,
            News::Change { change, show } => app.took(*change, show),
            News::Timeline { id, entries } => app.timeline(&id, entries),
            News::Done { answer, said, many } => {
                app.busy = app.busy.saturating_sub(1);
                if many {
                    let ids = app.decided(&answer.read()?);
                    self.moved.extend(ids);
                } else {
                    let change: Change = answer.read()?;
                    app.drafts.remove(&change.id);
                    app.say(Tone::Good, told(said, &change));
                    // Only what is on the screen already: a late answer must not open it again.
                    let shown = app.detail.as_ref().is_some_and(|d| d.change.id == change.id);
                    self.moved.insert(change.id.clone());
                    app.took(change, shown);
                }
            }
            News::Refused { what, id } => {
                app.busy = app.busy.saturating_sub(usize::from(id.is_some()));
                app.say(Tone::Bad, what);
                // It was refused because it is not as it was shown.
                app.expected.clone_from(&id);
                self.moved.extend(id);
            }
            News::Live => {
                app.live = true;
                self.again = true;
            }
            News::Lost => app.live = false,
            News::Moved(id) => {
                self.moved.insert(id);
            }
            News::Over(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Ctrl-Z: stops as any program does, with the terminal given back.
    fn suspend(&mut self) -> Result<(), Failure> {
        self.keys = None;
        self.screen.leave();
        let _ = kill_current_process_group(Signal::TSTP);
        // Here it goes on after `fg`.
        self.screen.back()?;
        self.keys = Some(EventStream::new());
        Ok(())
    }

    /// Lets the person edit; whether the process is to end.
    async fn edit(
        &mut self,
        id: String,
        version: u64,
        text: &str,
        ends: &mut tokio::signal::unix::Signal,
        hangs_up: &mut tokio::signal::unix::Signal,
    ) -> Result<bool, Failure> {
        self.keys = None;
        self.screen.leave();
        let edited = async {
            let draft = editor::Draft::new(text)?;
            let mut child = draft.edit()?;
            let status = tokio::select! {
                _ = ends.recv() => return Ok(None),
                _ = hangs_up.recv() => return Ok(None),
                status = child.wait() => status?,
            };
            if status.success() {
                draft.read().map(Some)
            } else {
                Err(std::io::Error::other(format!("it ended with {status}")))
            }
        };
        let edited = edited.await;
        if matches!(edited, Ok(None)) {
            return Ok(true);
        }
        self.screen.back()?;
        self.keys = Some(EventStream::new());
        match edited {
            Ok(after) => {
                let original = self.app.detail.as_ref().filter(|d| d.change.id == id);
                let original = original.map_or_else(String::new, |d| crate::output::indented(d.change.arguments.get()));
                self.app.edited(id, version, &original, after.unwrap_or_default());
            }
            Err(error) => self.app.say(Tone::Bad, format!("The editor: {error}; nothing was changed.")),
        }
        Ok(false)
    }
}

/// The next event of the terminal; never, while its keys are somebody else's.
async fn next(keys: &mut Option<EventStream>) -> Option<std::io::Result<Event>> {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

/// What came of it.
fn told(said: &str, change: &Change) -> String {
    use countersign_domain::changes::ChangeState;
    match (said, change.state) {
        ("Approved", ChangeState::Pending) => waits_for(change),
        ("Approved", ChangeState::Stale) => "The target has changed: look at the new diff and decide again.".to_owned(),
        ("Approved", ChangeState::Approved) if change.run_after.is_some() => {
            format!("Approved; u undoes it within {}s.", change.terms.undo_for)
        }
        _ => format!("{said}; the change is {}.", super::render::state_name(change.state)),
    }
}
