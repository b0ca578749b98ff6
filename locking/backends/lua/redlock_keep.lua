-- Extend the lock on this master if it still has the value; release it, or withdraw a vote.
-- KEYS[1] the lock; ARGV[1] the value of the grant, ARGV[2] milliseconds from now, 0 to delete it
-- Returns 1, or 0 when it is deleted or has another value.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
