------------------------------ MODULE RedLock -------------------------------
(* RedLock on three masters, with the actions of loadtest/protocols/redlock.py. *)
(* Read docs/explanation/models.md first. `make tlc` checks this module.        *)
EXTENDS Integers, FiniteSets

CONSTANTS Clients, MaxFaults,
          Fault,     \* "Restart" or "Jump"
          Delays     \* a restarted master does not vote until all earlier leases have ended

VARIABLES at, votes, master, delay, faults
vars == <<at, votes, master, delay, faults>>

Free == "free"
Masters == 1 .. 3
Init == /\ at = [c \in Clients |-> "idle"] /\ votes = [c \in Clients |-> {}]
        /\ master = [m \in Masters |-> Free] /\ delay = [m \in Masters |-> {}]
        /\ faults = MaxFaults

Ask(c) == /\ at[c] = "idle" /\ at' = [at EXCEPT ![c] = "asking"]
          /\ UNCHANGED <<votes, master, delay, faults>>
CanVote(c, m) == at[c] = "asking" /\ master[m] = Free /\ delay[m] = {}
Vote(c, m) == /\ CanVote(c, m) /\ master' = [master EXCEPT ![m] = c]
              /\ votes' = [votes EXCEPT ![c] = @ \union {m}]
              /\ UNCHANGED <<at, delay, faults>>
LoseVote(c, m) == /\ CanVote(c, m) /\ faults > 0 /\ faults' = faults - 1
                  /\ master' = [master EXCEPT ![m] = c]
                  /\ UNCHANGED <<at, votes, delay>>
Acquire(c) == /\ at[c] = "asking" /\ Cardinality(votes[c]) >= 2
              /\ at' = [at EXCEPT ![c] = "holding"]
              /\ UNCHANGED <<votes, master, delay, faults>>

(* The votes end with the claim, and no master waits for it any more. *)
EndOf(c) == /\ at' = [at EXCEPT ![c] = "idle"] /\ votes' = [votes EXCEPT ![c] = {}]
            /\ master' = [m \in Masters |-> IF master[m] = c THEN Free ELSE master[m]]
            /\ delay' = [m \in Masters |-> delay[m] \ {c}]
            /\ UNCHANGED faults
Withdraw(c) == at[c] # "idle" /\ EndOf(c)
Expire(c) == at[c] = "holding" /\ EndOf(c)

LoseKeys(m) == /\ faults > 0 /\ faults' = faults - 1
               /\ master' = [master EXCEPT ![m] = Free]
               /\ UNCHANGED <<at, votes>>
Known == IF Delays THEN {c \in Clients : at[c] # "idle"} ELSE {}
Restart(m) == /\ Fault = "Restart" /\ LoseKeys(m)
              /\ delay' = [delay EXCEPT ![m] = @ \union Known]
Jump(m) == Fault = "Jump" /\ LoseKeys(m) /\ UNCHANGED delay

Steps == \/ \E c \in Clients : \/ Ask(c) \/ Acquire(c) \/ Withdraw(c) \/ Expire(c)
                               \/ \E m \in Masters : Vote(c, m) \/ LoseVote(c, m)
         \/ \E m \in Masters : Restart(m) \/ Jump(m)
Spec == Init /\ [][Steps]_vars

OneHolder == \A c, d \in Clients : at[c] = "holding" /\ at[d] = "holding" => c = d

(* Variants
   restart          Fault = "Restart", ~Delays
   delayed-restart  Fault = "Restart", Delays
   clock-jump       Fault = "Jump", Delays                                                  *)
=============================================================================
