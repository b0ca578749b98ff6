------------------------------- MODULE Queue --------------------------------
(* A queued sale, with the actions of loadtest/protocols/queue.py.         *)
(* Read docs/explanation/models.md first. `make tlc` checks this module.   *)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS Customers, Writers, Units, MaxFaults,
          SettlesFirst, LocksReconciler, HasReconciler, ReadsAgain, HasUniqueNumber

VARIABLES customer, mirror, quantity, stream, orders, rejected, messages,
          holder, writer, reconciler, checked, excused, faults
vars == <<customer, mirror, quantity, stream, orders, rejected, messages,
          holder, writer, reconciler, checked, excused, faults>>

Free == "free"
Dead == "dead"
Reconciler == "reconciler"
Lost == -9
IdleWriter == [at |-> "idle", entry |-> "none"]
IdleReconciler == [at |-> "idle", quantity |-> 0, known |-> {}]
Init == /\ customer = [c \in Customers |-> "idle"] /\ mirror = Units /\ quantity = Units
        /\ stream = {} /\ orders = <<>> /\ rejected = {} /\ messages = {} /\ holder = Free
        /\ writer = [w \in Writers |-> IdleWriter] /\ reconciler = IdleReconciler
        /\ checked = FALSE /\ excused = FALSE /\ faults = MaxFaults

Ordered == {orders[n] : n \in DOMAIN orders}
Decided == Ordered \union rejected
Redis == <<mirror, stream>>
Database == <<quantity, orders, rejected, messages>>
Others == <<reconciler, excused>>
Step(w, at, c) == writer' = [writer EXCEPT ![w] = [at |-> at, entry |-> c]]
Finish(w) == /\ writer' = [writer EXCEPT ![w] = IdleWriter]
             /\ holder' = IF holder = w THEN Free ELSE holder

Reserve(c) == /\ customer[c] = "idle" /\ mirror # Lost /\ mirror > Cardinality(stream)
              /\ customer' = [customer EXCEPT ![c] = "accepted"] /\ stream' = stream \union {c}
              /\ UNCHANGED <<mirror, Database, holder, writer, Others, checked, faults>>
SoldOut(c) == /\ customer[c] = "idle" /\ mirror # Lost /\ mirror <= Cardinality(stream)
              /\ customer' = [customer EXCEPT ![c] = "refused"]
              /\ UNCHANGED <<Redis, Database, holder, writer, Others, checked, faults>>

Take(w, c) == /\ writer[w].at = "idle" /\ holder = Free /\ c \in stream
              /\ holder' = w /\ Step(w, "took", c)
              /\ UNCHANGED <<customer, Redis, Database, Others, checked, faults>>
IsKnown(w) == HasUniqueNumber /\ writer[w].entry \in Decided
Find(w) == /\ writer[w].at = "took" /\ IsKnown(w) /\ Step(w, "decided", writer[w].entry)
           /\ UNCHANGED <<customer, Redis, Database, holder, Others, checked, faults>>
Leave(c) == IF c \in stream
            THEN stream' = stream \ {c} /\ mirror' = mirror - 1 /\ checked' = FALSE
            ELSE UNCHANGED <<Redis, checked>>
Settle(w) == /\ \/ /\ writer[w].at = "took" /\ SettlesFirst /\ ~IsKnown(w)
                   /\ Step(w, "settled", writer[w].entry) /\ UNCHANGED holder
                \/ writer[w].at = "decided" /\ Finish(w)
             /\ Leave(writer[w].entry)
             /\ UNCHANGED <<customer, Database, Others, faults>>
Writes(w) == \/ writer[w].at = "took" /\ ~IsKnown(w) /\ ~SettlesFirst
             \/ writer[w].at = "settled"
IsNew(c) == ~HasUniqueNumber \/ c \notin Ordered
Insert(c) == IF quantity > 0 /\ IsNew(c)
             THEN orders' = Append(orders, c) /\ quantity' = quantity - 1 /\ checked' = FALSE
             ELSE UNCHANGED <<orders, quantity, checked>>
IsRefused(c) == c \notin Ordered /\ quantity = 0
Commit(w) == /\ Writes(w) /\ ~IsRefused(writer[w].entry)
             /\ Insert(writer[w].entry) /\ Step(w, "decided", writer[w].entry)
             /\ UNCHANGED <<customer, Redis, rejected, messages, holder, Others, faults>>
Reject(w) == /\ Writes(w) /\ IsRefused(writer[w].entry)
             /\ rejected' = rejected \union {writer[w].entry}
             /\ Step(w, "decided", writer[w].entry)
             /\ UNCHANGED <<customer, Redis, quantity, orders, messages, holder, Others>>
             /\ UNCHANGED <<checked, faults>>
Deliver(c) == /\ c \in messages /\ messages' = messages \ {c} /\ Insert(c)
              /\ UNCHANGED <<customer, Redis, rejected, holder, writer, Others, faults>>
Expire == /\ holder = Dead /\ holder' = Free
          /\ UNCHANGED <<customer, Redis, Database, writer, Others, checked, faults>>

Ends == /\ reconciler' = IdleReconciler
        /\ holder' = IF holder = Reconciler THEN Free ELSE holder
Compare == /\ reconciler.at = "idle" /\ HasReconciler /\ ~checked
           /\ LocksReconciler => holder = Free
           /\ holder' = IF LocksReconciler THEN Reconciler ELSE holder
           /\ reconciler' = [reconciler EXCEPT !.at = "compared", !.quantity = quantity]
           /\ checked' = TRUE
           /\ UNCHANGED <<customer, Redis, Database, writer, excused, faults>>
Agree == /\ reconciler.at = "compared" /\ mirror = reconciler.quantity /\ Ends
         /\ UNCHANGED <<customer, Redis, Database, writer, excused, checked, faults>>
Match == /\ reconciler.at = "compared"
         /\ reconciler' = [reconciler EXCEPT !.at = "matched", !.known = Decided]
         /\ UNCHANGED <<customer, Redis, Database, holder, writer, excused, checked, faults>>
ReadAgain == /\ reconciler.at = "matched" /\ ReadsAgain
             /\ reconciler' = [reconciler EXCEPT
                    !.at = IF quantity = reconciler.quantity THEN "checked" ELSE "compared",
                    !.quantity = quantity]
             /\ UNCHANGED <<customer, Redis, Database, holder, writer, excused, checked, faults>>
Repair == /\ reconciler.at = (IF ReadsAgain THEN "checked" ELSE "matched")
          /\ stream' = stream \ reconciler.known /\ mirror' = reconciler.quantity /\ Ends
          /\ UNCHANGED <<customer, Database, writer, excused, checked, faults>>

Fault == faults > 0 /\ faults' = faults - 1
Pause == /\ Fault /\ holder \notin {Free, Dead} /\ holder' = Free /\ excused' = TRUE
         /\ UNCHANGED <<customer, Redis, Database, writer, reconciler, checked>>
Crash(w) == /\ Fault /\ writer[w].at # "idle"
            /\ writer' = [writer EXCEPT ![w] = IdleWriter]
            /\ holder' = IF holder = w THEN Dead ELSE holder
            /\ UNCHANGED <<customer, Redis, Database, Others, checked>>
LoseReply(w) == /\ Fault /\ Writes(w) /\ messages' = messages \union {writer[w].entry}
                /\ Finish(w)
                /\ UNCHANGED <<customer, Redis, quantity, orders, rejected, Others, checked>>
Lose == /\ Fault /\ mirror # Lost /\ mirror' = Lost /\ stream' = {}
        /\ checked' = FALSE /\ excused' = TRUE
        /\ customer' = [c \in Customers |-> IF c \in Decided THEN customer[c] ELSE "idle"]
        /\ UNCHANGED <<Database, holder, writer, reconciler>>

Works == \/ \E c \in Customers : Reserve(c) \/ SoldOut(c) \/ Deliver(c)
         \/ \E w \in Writers : \/ Find(w) \/ Settle(w) \/ Commit(w) \/ Reject(w)
                               \/ \E c \in Customers : Take(w, c)
         \/ Expire \/ Compare \/ Agree \/ Match \/ ReadAgain \/ Repair
Fails == Pause \/ Lose \/ \E w \in Writers : Crash(w) \/ LoseReply(w)
Spec == Init /\ [][Works \/ Fails]_vars

NeverOversold == Len(orders) <= Units
OneOrderPerKey == \A m, n \in DOMAIN orders : m # n => orders[m] # orders[n]
StockConserved == quantity + Len(orders) = Units
OneOutcome == rejected \intersect Ordered = {}
NoReservationRejected == excused \/ rejected = {}
AtRest == ~ENABLED Works
NoReservationLost == AtRest => \A c \in Customers : customer[c] = "accepted" => c \in Decided
NoUnitLost == AtRest => mirror = quantity

(* Variants; all others have LocksReconciler, HasReconciler, ReadsAgain and HasUniqueNumber.
   reconciled           no change
   settle-first         SettlesFirst
   unlocked-reconciler  ~LocksReconciler
   quantity-first       ~ReadsAgain
   no-reconciler        ~HasReconciler
   no-unique-number     ~HasUniqueNumber                                                    *)
=============================================================================
