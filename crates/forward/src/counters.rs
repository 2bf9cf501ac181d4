//! Counts of frames by outcome.

macro_rules! reasons {
    ($($name:ident $text:literal $doc:literal;)*) => {
        /// Reason for dropping a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $doc] $name,)*
        }

        impl Reason {
            /// All reasons, in the order in which they are shown.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Name of the reason in tables and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    Truncated "truncated" "The frame is shorter than its headers say.";
    Type "ether_type" "Its Ethernet type is not forwarded, for example a VLAN's.";
    NotForUs "not_for_us" "Its Ethernet destination is another interface.";
    Source "source" "Its source cannot be a host: a group, the unspecified or a loopback address, or an address valid on one link only.";
    Destination "destination" "Frames are not sent to its destination: a group, a broadcast, a loopback address, an address valid on one link only, or, for named data, the port that it arrived at.";
    Version "version" "The version of its IP header is not that of its Ethernet type.";
    Length "length" "Two lengths in its headers contradict each other.";
    Checksum "checksum" "A checksum is wrong.";
    Options "options" "Its options or extension headers are cut off, or there are more than the router reads.";
    SourceRoute "source_route" "It is source-routed: it names the routers to pass, which is refused.";
    Arp "arp" "It is not an ARP message for IPv4.";
    Discovery "discovery" "It is not a valid message of neighbour discovery.";
    TimeToLive "time_to_live" "Its time to live has run out.";
    NoRoute "no_route" "There is no route to its destination.";
    Prohibited "prohibited" "A route discards packets to its destination, or the destination is the first or last address of a network.";
    TooBig "too_big" "It is larger than the next link's MTU and must not be fragmented.";
    QueueFull "queue_full" "Too many frames are waiting for a neighbour's address.";
    Neighbour "neighbour" "Nobody answers for the next hop.";
    Local "local" "It is for the router itself, which has no use for it.";
    Name "name" "Its name is missing, or has an empty component or too many.";
    NotInterest "not_interest" "It is a packet of named data other than an Interest.";
    Station "station" "Its source cannot be a station's address, or its destination is behind the port that it arrived at.";
}

/// Counters of a forwarder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Frames that the forwarder looked at.
    pub received: u64,
    /// Frames sent on, including those that waited for a neighbour.
    pub forwarded: u64,
    /// Frames addressed to the forwarder itself that it answered or learnt from.
    pub handled_locally: u64,
    /// Frames that the forwarder made: answers, requests, errors, fragments.
    pub made: u64,
    /// Errors that the rate limit held back. Their frames count as dropped for their own reason.
    pub errors_suppressed: u64,
    dropped: [u64; Reason::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            received: 0,
            forwarded: 0,
            handled_locally: 0,
            made: 0,
            errors_suppressed: 0,
            dropped: [0; Reason::ALL.len()],
        }
    }
}

impl Counters {
    /// Frames dropped for a reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Counts a dropped frame.
    #[inline]
    pub fn drop(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }
}
