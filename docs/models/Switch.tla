------------------------------- MODULE Switch -------------------------------
(* A switch of the lock backend, with the actions of loadtest/protocols/switch.py. *)
(* Read docs/explanation/models.md first. `make tlc` checks this module.           *)
EXTENDS Integers

CONSTANTS Processes,
          Strategy,      \* "naive" or "fenced"
          SeesFirst, DrainsNames, ReadsAgain, HasEpoch, IsForced

VARIABLES process, phase, epoch, begun, seen, faults, holder, count, fence, quantity, orders
vars == <<process, phase, epoch, begun, seen, faults, holder, count, fence, quantity, orders>>

Free == "free"
Backends == {"old", "new"}
Init == /\ process = [p \in Processes |-> [at |-> "idle", phase |-> "announced", epoch |-> 0,
                                           young |-> FALSE, token |-> 0, read |-> 0]]
        /\ phase = "old" /\ epoch = 0 /\ begun = "no" /\ seen = "no" /\ faults = 1
        /\ holder = [b \in Backends |-> Free] /\ count = [b \in Backends |-> 0]
        /\ fence = <<0, 0>> /\ quantity = 1 /\ orders = 0

Policy == <<phase, epoch, begun, seen, faults>>
Locks == <<holder, count>>
Row == <<fence, quantity, orders>>
Become(p, new) == process' = [process EXCEPT ![p] = new]
At(p, at) == Become(p, [process[p] EXCEPT !.at = at])
Backend(p) == IF process[p].phase = "new" THEN "new" ELSE "old"
Release(p) == holder' = [holder EXCEPT ![Backend(p)] = Free]
Done(p) == At(p, "done") /\ Release(p)

(* MAX_AGE passes: every policy is too old, and every wait long enough. *)
Older(when) == IF when = "no" THEN "no" ELSE "earlier"
Tick == /\ process' = [p \in Processes |-> [process[p] EXCEPT !.young = FALSE]]
        /\ begun' = Older(begun) /\ seen' = Older(seen)
        /\ UNCHANGED <<phase, epoch, faults, Locks, Row>>

Force == /\ IsForced /\ phase = "old" /\ phase' = "new" /\ epoch' = epoch + 1
         /\ UNCHANGED <<process, begun, seen, faults, Locks, Row>>
Begin == /\ ~IsForced /\ phase = "old" /\ begun = "no" /\ begun' = "now"
         /\ UNCHANGED <<process, phase, epoch, seen, faults, Locks, Row>>
Announce == /\ ~IsForced /\ phase = "old" /\ begun # "no" /\ phase' = "announced"
            /\ UNCHANGED <<process, epoch, begun, seen, faults, Locks, Row>>
See == /\ phase = "announced" /\ seen = "no" /\ seen' = "now"
       /\ UNCHANGED <<process, phase, epoch, begun, faults, Locks, Row>>
Replace == /\ phase = "announced" /\ seen # "no" /\ faults > 0 /\ seen' = "no" /\ faults' = 0
           /\ UNCHANGED <<process, phase, epoch, begun, Locks, Row>>
HandOver == /\ phase = "announced" /\ (IF SeesFirst THEN seen ELSE begun) = "earlier"
            /\ phase' = IF DrainsNames /\ holder["old"] # Free THEN "waiting" ELSE "new"
            /\ epoch' = epoch + 1
            /\ UNCHANGED <<process, begun, seen, faults, Locks, Row>>
HandOverName == /\ phase = "waiting" /\ holder["old"] = Free /\ phase' = "new"
                /\ UNCHANGED <<process, epoch, begun, seen, faults, Locks, Row>>

ReadPolicy(p) == /\ process[p].at = "idle" /\ ~process[p].young
                 /\ Become(p, [process[p] EXCEPT !.phase = phase, !.epoch = epoch, !.young = TRUE])
                 /\ UNCHANGED <<Policy, Locks, Row>>
Ask(p) == /\ process[p].at = "idle" /\ process[p].young /\ process[p].phase \in Backends
          /\ At(p, "asking") /\ UNCHANGED <<Policy, Locks, Row>>
Grant(p) == LET b == Backend(p) IN
            /\ process[p].at = "asking" /\ holder[b] = Free
            /\ holder' = [holder EXCEPT ![b] = p] /\ count' = [count EXCEPT ![b] = @ + 1]
            /\ Become(p, [process[p] EXCEPT !.at = "granted", !.token = count[b] + 1])
            /\ UNCHANGED <<Policy, Row>>
IsCurrent(p) == \/ process[p].phase = phase /\ process[p].epoch = epoch
                \/ process[p].young
                \/ ~ReadsAgain
Keep(p) == /\ process[p].at = "granted" /\ IsCurrent(p)
           /\ At(p, "holding") /\ UNCHANGED <<Policy, Locks, Row>>
GiveBack(p) == /\ process[p].at = "granted" /\ ~IsCurrent(p) /\ Release(p)
               /\ Become(p, [process[p] EXCEPT !.at = "idle", !.phase = phase, !.epoch = epoch])
               /\ UNCHANGED <<Policy, count, Row>>

FenceOf(p) == <<IF HasEpoch THEN process[p].epoch ELSE 0, process[p].token>>
Older2(a, b) == a[1] < b[1] \/ (a[1] = b[1] /\ a[2] < b[2])
Claim(p) == /\ Strategy = "fenced" /\ process[p].at = "holding" /\ ~Older2(FenceOf(p), fence)
            /\ fence' = FenceOf(p) /\ At(p, "claimed")
            /\ UNCHANGED <<Policy, Locks, quantity, orders>>
Refuse(p) == /\ Strategy = "fenced"
             /\ \/ process[p].at = "holding" /\ Older2(FenceOf(p), fence)
                \/ process[p].at = "read" /\ FenceOf(p) # fence
             /\ Done(p) /\ UNCHANGED <<Policy, count, Row>>
Reads(p) == process[p].at = (IF Strategy = "fenced" THEN "claimed" ELSE "holding")
Read(p) == /\ Reads(p) /\ quantity > 0
           /\ Become(p, [process[p] EXCEPT !.at = "read", !.read = quantity])
           /\ UNCHANGED <<Policy, Locks, Row>>
SoldOut(p) == Reads(p) /\ quantity = 0 /\ Done(p) /\ UNCHANGED <<Policy, count, Row>>
Write(p) == /\ process[p].at = "read" /\ (Strategy = "fenced" => FenceOf(p) = fence)
            /\ quantity' = process[p].read - 1 /\ orders' = orders + 1
            /\ Done(p) /\ UNCHANGED <<Policy, count, fence>>

Steps == \/ Tick \/ Force \/ Begin \/ Announce \/ See \/ Replace \/ HandOver \/ HandOverName
         \/ \E p \in Processes : \/ ReadPolicy(p) \/ Ask(p) \/ Grant(p) \/ Keep(p) \/ GiveBack(p)
                                 \/ Claim(p) \/ Refuse(p) \/ Read(p) \/ SoldOut(p) \/ Write(p)
Spec == Init /\ [][Steps]_vars

NeverOversold == orders <= 1
StockConserved == quantity + orders = 1
Holding(p) == process[p].at \in {"holding", "claimed", "read"}
OneHolder == IsForced \/ \A p, q \in Processes : Holding(p) /\ Holding(q) => p = q

(* Variants; all others are "naive", with SeesFirst, DrainsNames, ReadsAgain and HasEpoch.
   drained            no change
   drain-from-switch  ~SeesFirst
   no-name-drain      ~DrainsNames
   no-second-read     ~ReadsAgain
   forced-naive       IsForced
   forced-fenced      IsForced, Strategy = "fenced"
   no-epoch           IsForced, Strategy = "fenced", ~HasEpoch                              *)
=============================================================================
