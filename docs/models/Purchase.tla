------------------------------ MODULE Purchase ------------------------------
(* Purchases under a lock, with the actions of loadtest/protocols/purchase.py. *)
(* Read docs/explanation/models.md first. `make tlc` checks this module.       *)
EXTENDS Integers, Sequences

CONSTANTS Buyers, Units, MaxTries, MaxFaults,
          Strategy,      \* "naive", "late_fence", "fenced" or "conditional"
          Faults,        \* subset of {"Pause", "Crash", "LoseReply", "Forget"}
          EndsEarly, HasUniqueKey

VARIABLES buyer, holder, lastToken, tokens, quantity, fence, orders, messages, faults
vars == <<buyer, holder, lastToken, tokens, quantity, fence, orders, messages, faults>>

Free == "free"
Dead == "dead"
Idle(n) == [at |-> "idle", token |-> 0, read |-> 0, tries |-> n]
Init == /\ buyer = [b \in Buyers |-> Idle(1)]
        /\ holder = Free /\ lastToken = 0 /\ tokens = <<>>
        /\ quantity = Units /\ fence = 0 /\ orders = <<>>
        /\ messages = {} /\ faults = MaxFaults

Ordered == {orders[n] : n \in DOMAIN orders}
Become(b, new) == buyer' = [buyer EXCEPT ![b] = new]
At(b, at) == Become(b, [buyer[b] EXCEPT !.at = at])
ReleaseBy(b) == holder' = IF holder = b THEN Free ELSE holder
End(b, at) == ReleaseBy(b) /\ Become(b, [Idle(0) EXCEPT !.at = at])
Next(b) == IF buyer[b].tries < MaxTries THEN Idle(buyer[b].tries + 1)
           ELSE [Idle(0) EXCEPT !.at = "refused"]
Again(b) == ReleaseBy(b) /\ Become(b, Next(b))
Message(b) == [buyer |-> b, token |-> buyer[b].token, read |-> buyer[b].read]
Reads(b) == \/ buyer[b].at = "claimed"
            \/ buyer[b].at = "granted" /\ Strategy \in {"naive", "late_fence"}
Store == <<quantity, fence, orders, messages>>
Lock == <<holder, lastToken, tokens>>

Acquire(b) == /\ buyer[b].at = "idle" /\ holder = Free
              /\ holder' = b /\ lastToken' = lastToken + 1
              /\ tokens' = Append(tokens, lastToken + 1)
              /\ Become(b, [buyer[b] EXCEPT !.at = "granted", !.token = lastToken + 1])
              /\ UNCHANGED <<Store, faults>>
Refuse(b) == /\ buyer[b].at = "granted" /\ Strategy = "fenced" /\ buyer[b].token < fence
             /\ Again(b) /\ UNCHANGED <<lastToken, tokens, Store, faults>>
Claim(b) == /\ buyer[b].at = "granted" /\ Strategy = "fenced" /\ buyer[b].token >= fence
            /\ fence' = buyer[b].token /\ At(b, "claimed")
            /\ UNCHANGED <<Lock, quantity, orders, messages, faults>>
Replay(b) == /\ Reads(b) /\ HasUniqueKey /\ b \in Ordered
             /\ End(b, "told") /\ UNCHANGED <<lastToken, tokens, Store, faults>>
IsNew(b) == ~HasUniqueKey \/ b \notin Ordered
Read(b) == /\ Reads(b) /\ IsNew(b) /\ quantity > 0
           /\ Become(b, [buyer[b] EXCEPT !.at = "read", !.read = quantity])
           /\ UNCHANGED <<Lock, Store, faults>>
SoldOut(b) == /\ Reads(b) /\ IsNew(b) /\ quantity = 0
              /\ End(b, "refused") /\ UNCHANGED <<lastToken, tokens, Store, faults>>
Send(b) == /\ \/ buyer[b].at = "read"
              \/ buyer[b].at = "granted" /\ Strategy = "conditional"
           /\ messages' = messages \union {Message(b)} /\ At(b, "sent")
           /\ UNCHANGED <<Lock, quantity, fence, orders, faults>>
Tell(b) == /\ buyer[b].at = "sent" /\ EndsEarly
           /\ End(b, "told") /\ UNCHANGED <<lastToken, tokens, Store, faults>>

IsValid(m) == /\ CASE Strategy = "naive"       -> TRUE
                   [] Strategy = "late_fence"  -> m.token >= fence
                   [] Strategy = "fenced"      -> m.token = fence
                   [] Strategy = "conditional" -> m.token >= fence /\ quantity > 0
              /\ IsNew(m.buyer)
Reply(m, known) == LET b == m.buyer IN
    IF buyer[b].at = "sent" /\ buyer[b].token = m.token /\ b \in known THEN End(b, "told")
    ELSE IF buyer[b].at = "sent" /\ buyer[b].token = m.token THEN Again(b)
    ELSE UNCHANGED <<buyer, holder>>
Commit(m) == /\ IsValid(m) /\ messages' = messages \ {m}
             /\ quantity' = (IF Strategy = "conditional" THEN quantity ELSE m.read) - 1
             /\ fence' = IF Strategy = "naive" THEN fence ELSE m.token
             /\ orders' = Append(orders, m.buyer) /\ Reply(m, Ordered \union {m.buyer})
             /\ UNCHANGED <<lastToken, tokens, faults>>
RollBack(m) == /\ ~IsValid(m) /\ messages' = messages \ {m} /\ Reply(m, Ordered)
               /\ UNCHANGED <<lastToken, tokens, quantity, fence, orders, faults>>
Expire == holder = Dead /\ holder' = Free
          /\ UNCHANGED <<buyer, lastToken, tokens, Store, faults>>

Fault(name) == name \in Faults /\ faults > 0 /\ faults' = faults - 1
Works(b) == buyer[b].at \notin {"idle", "told", "refused"}
Pause(b) == /\ Fault("Pause") /\ Works(b) /\ holder = b /\ holder' = Free
            /\ UNCHANGED <<buyer, lastToken, tokens, Store>>
Crash(b) == /\ Fault("Crash") /\ Works(b) /\ Become(b, Next(b))
            /\ holder' = IF holder = b THEN Dead ELSE holder
            /\ UNCHANGED <<lastToken, tokens, Store>>
LoseReply(b) == /\ Fault("LoseReply") /\ buyer[b].at = "sent"
                /\ Again(b) /\ UNCHANGED <<lastToken, tokens, Store>>
Forget == /\ Fault("Forget") /\ holder' = Free /\ lastToken' = 0
          /\ UNCHANGED <<buyer, tokens, Store>>

Steps == \/ \E b \in Buyers : \/ Acquire(b) \/ Refuse(b) \/ Claim(b) \/ Replay(b) \/ Read(b)
                              \/ SoldOut(b) \/ Send(b) \/ Tell(b)
                              \/ Pause(b) \/ Crash(b) \/ LoseReply(b)
         \/ \E m \in messages : Commit(m) \/ RollBack(m)
         \/ Expire \/ Forget
Spec == Init /\ [][Steps]_vars

NeverOversold == Len(orders) <= Units
OneOrderPerKey == \A m, n \in DOMAIN orders : m # n => orders[m] # orders[n]
NoOrderLost == \A b \in Buyers : buyer[b].at = "told" =>
                   b \in Ordered \/ \E m \in messages : m.buyer = b
TokensGrow == \A n \in 1 .. Len(tokens) - 1 : tokens[n] < tokens[n + 1]
StockConserved == quantity + Len(orders) = Units

(* Variants; all others have Faults = {"Pause", "Crash", "LoseReply"}, HasUniqueKey and no more.
   lease-without-fence    Strategy = "naive"
   fence-at-write         Strategy = "late_fence"
   claim-before-read      Strategy = "fenced"
   conditional            Strategy = "conditional"
   release-before-commit  Strategy = "naive", Faults = {}, EndsEarly
   told-before-commit     Strategy = "fenced", EndsEarly
   lost-reply-released    Strategy = "naive", Faults = {"LoseReply"}
   no-unique-key          Strategy = "conditional", ~HasUniqueKey
   tokens-forgotten       Strategy = "fenced", Faults with "Forget"                         *)
=============================================================================
