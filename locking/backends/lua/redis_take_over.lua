-- Continues, for the caller, a grant that its holder handed over. It is safe to run twice: the second
-- run finds the caller's grant.
--
-- KEYS  1 lock, 2 queue, 3 clock (see redis_queue.lua)
-- ARGV  1 owner, 2 floor (see there)
--       3 ttl    ms that the grant lasts from now on
--       4 giver  the owner that handed it over
--       5 token  the giver's
-- Returns the caller's token; 0 if the giver does not hold the lock with this token and a count of 0

local ttl, giver, given = ARGV[3], ARGV[4], ARGV[5]
local holder, token, count = unpack(redis.call('HMGET', lock, 'owner', 'token', 'count'))
if holder == caller then
  redis.call('PEXPIRE', lock, ttl)
  return tonumber(token)
end
if holder ~= giver or token ~= given or count ~= '0' then
  return 0
end
local new = next_token(0)
grant(caller, ttl, new)
if redis.call('EXISTS', queue) == 1 then
  redis.call('LSET', queue, 0, unqueued(caller))
end
return new
