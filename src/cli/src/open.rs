//! `open`: a one-time sign-in code in the store, and the link that carries it in its fragment.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use jiff::Timestamp;

use super::{
    args::OpenArgs,
    client::own_gateway::{self, Named},
    exit::{Exit, Failure},
    output::{Output, remark},
    place_at, store_location,
};
use countersign_attach::socket;
use countersign_auth::codes;
use countersign_net::{self as net, tls};

pub fn run(args: &OpenArgs, out: &mut Output) -> Result<Exit, Failure> {
    let location = store_location(&args.data)?;
    let gateway = running(&location.data)?;
    let place = place_at(&location)?;
    let code = codes::create(&*place.credentials()?, Timestamp::now())?;
    let link = format!("{}/#code={code}", gateway.link_base.trim_end_matches('/'));
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

/// The gateway that serves the data directory, once it has proved that it is that one: whoever listened in its place would
/// get the code from the link.
fn running(data: &Path) -> Result<Named, Failure> {
    let gateway = own_gateway::named(data)?;
    actix_web::rt::System::new()
        .block_on(async {
            if gateway.url.scheme() == "https" {
                // Its certificate need not be for the address that this machine reaches it by; the browser looks at the one
                // of the link. Here it counts that it lives: nobody else then has its port.
                return match socket::connect(data).await {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => Err(format!("the gateway of {} has ended", data.display())),
                    Err(error) => Err(error.to_string()),
                };
            }
            gateway.prove(&net::client(tls::public_config())).await
        })
        .map_err(|why| Failure::new(Exit::Unavailable, why))?;
    Ok(gateway)
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
