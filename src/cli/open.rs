//! `open`: a one-time sign-in code in the store, and the link that carries it in its fragment.

use std::{
    net::{TcpStream, ToSocketAddrs},
    process::{Command, Stdio},
    time::Duration,
};

use jiff::Timestamp;
use url::Url;

use super::{
    args::OpenArgs,
    configuration,
    exit::{Exit, Failure},
    output::{Output, remark},
};
use crate::{attach::GatewayFile, auth::codes, config::Config, store::keys::Keys};

/// How long to look whether the gateway is there.
const LOOK: Duration = Duration::from_secs(2);

pub fn run(args: &OpenArgs, out: &mut Output) -> Result<Exit, Failure> {
    let config = configuration(&args.data.flags())?.config;
    let gateway = running(&config)?;
    let code = codes::create(&Keys::open(&config.data)?, Timestamp::now())?;
    let link = format!("{}/#code={code}", gateway.link_base().trim_end_matches('/'));
    out.line(&link)?;
    out.finish()?;
    let minutes = codes::LIFE.as_mins();
    if !args.print && open_browser(&link) {
        remark(&format!("Opening the dashboard. The link works once, within {minutes} minutes."));
    } else {
        remark(&format!("Open this link in your browser. It works once, within {minutes} minutes."));
    }
    Ok(Exit::Ok)
}

/// The gateway that serves the data directory, if it answers.
fn running(config: &Config) -> Result<GatewayFile, Failure> {
    let none = |why: String| {
        let message = format!("{why}. Start one with `countersign serve`, then try again");
        Failure::new(Exit::Unavailable, message)
    };
    let Some(gateway) = GatewayFile::read(&config.data) else {
        return Err(none(format!("no gateway serves {}", config.data.display())));
    };
    let url = Url::parse(&gateway.url).ok();
    let addresses = url.as_ref().and_then(|url| {
        let (host, port) = (url.host_str()?, url.port_or_known_default()?);
        (host.trim_matches(['[', ']']), port).to_socket_addrs().ok()
    });
    let answers = addresses.into_iter().flatten().any(|address| TcpStream::connect_timeout(&address, LOOK).is_ok());
    if answers {
        Ok(gateway)
    } else {
        let told = format!(
            "the gateway of {} (pid {}) does not answer at {}",
            config.data.display(),
            gateway.pid,
            gateway.url
        );
        Err(none(told))
    }
}

/// Hands the link to the desktop, if there is one. The code in it stands in the arguments of `xdg-open` for a moment,
/// where other users of this machine may see it; it works once, and the browser is faster.
fn open_browser(link: &str) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if !set("DISPLAY") && !set("WAYLAND_DISPLAY") {
        return false;
    }
    let started =
        Command::new("xdg-open").arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    // Browsers that stay in the foreground are not waited for.
    started.is_ok()
}
