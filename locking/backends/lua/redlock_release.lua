-- Release the lock on this master if it still has the value; also withdraws a vote.
-- KEYS[1] the lock; ARGV[1] the value of the grant
-- Returns 1, or 0 when it is deleted or has another value.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
